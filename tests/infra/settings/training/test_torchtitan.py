"""torchtitan options, which are validated and passed to its command line."""

from typing import Any

import pytest

from infra.settings import validate
from infra.settings.training.torchtitan import released
from tests.infra.jobs import configuration, job, kind_of, problems_of

LLAMA: dict[str, Any] = {"module": "llama3", "config": "llama3_8b"}


def torchtitan_job(
    kind: str = "volcano", *, options: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """Return a job of eight processes that runs torchtitan."""
    program = {**LLAMA, "options": options or {}}
    return job(
        kind, **{"hyperparameters": None, "image": "titan", "torchtitan": program, **changes}
    )


# name: (job, parts of the error)
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown module": (
        torchtitan_job(torchtitan={**LLAMA, "module": "lama3"}),
        (".torchtitan sets module to 'lama3'", "did you mean 'llama3'?", "qwen3"),
    ),
    "unknown configuration": (
        torchtitan_job(torchtitan={**LLAMA, "config": "llama_8b"}),
        ("sets config to 'llama_8b'", "did you mean 'llama3_8b'?"),
    ),
    "unknown option": (
        torchtitan_job(options={"training": {"step": 5}}),
        ("sets options.training.step,", "did you mean 'steps'?"),
    ),
    "unknown section": (
        torchtitan_job(options={"train": {}}),
        ("sets options.train,", "'training'"),
    ),
    "option that the stack sets": (
        torchtitan_job(options={"checkpoint": {"folder": "/x"}}),
        ("sets options.checkpoint.folder",),
    ),
    "wrong type": (
        torchtitan_job(options={"training": {"steps": "5"}}),
        ("options.training.steps to '5'", "integer"),
    ),
    "wrong choice": (
        torchtitan_job(options={"activation_checkpoint": "half"}),
        ("options.activation_checkpoint to 'half'", "selective"),
    ),
    "degrees above the number of processes": (
        torchtitan_job(options={"parallelism": {"tensor_parallel_degree": 16}}),
        ("has 8 processes", "tensor_parallel_degree 16", "must be 8"),
    ),
    "degrees that do not divide the processes": (
        torchtitan_job(options={"parallelism": {"tensor_parallel_degree": 3}}),
        ("tensor_parallel_degree 3", "must be 8"),
    ),
    "degrees from a predefined configuration": (
        torchtitan_job(torchtitan={**LLAMA, "config": "llama3_70b"}, nodes=1),
        ("has 4 processes", "tensor_parallel_degree 8"),
    ),
    "fixed degree below the number of processes": (
        torchtitan_job(options={"parallelism": {"data_parallel_shard_degree": 4}}),
        ("data_parallel_shard_degree 4", "must be 8"),
    ),
    "expert degree above the processes of a stage": (
        torchtitan_job(
            options={"parallelism": {"pipeline_parallel_degree": 4, "expert_parallel_degree": 4}}
        ),
        ("expert_parallel_degree 4)", "tensor degrees (2)"),
    ),
    "degree of zero": (
        torchtitan_job(options={"parallelism": {"pipeline_parallel_degree": 0}}),
        ("pipeline_parallel_degree 0",),
    ),
    "elastic": (torchtitan_job(min_nodes=1), ("torchtitan and min_nodes",)),
    "image without torchtitan": (torchtitan_job(image="training"), ("training/titan/Dockerfile",)),
    "two programs": (torchtitan_job(command=["a"]), ("sets torchtitan and command",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_with_its_remedy(name: str) -> None:
    job_config, parts = MISTAKES[name]
    found = problems_of(job_config)
    assert any(all(part in problem for part in parts) for problem in found), found


@pytest.mark.parametrize("module", released()["modules"])
def test_every_predefined_configuration_fits_a_gang_of_its_degrees(module: str) -> None:
    for config, schema in released()["modules"][module].items():
        degrees = schema["defaults"]["parallelism"]
        processes = degrees["tensor_parallel_degree"] * degrees["pipeline_parallel_degree"]
        shards = degrees["data_parallel_shard_degree"]
        processes *= degrees["expert_parallel_degree"] if shards < 0 else shards
        job_config = torchtitan_job(
            torchtitan={"module": module, "config": config}, nodes=processes, gpus_per_node=1
        )
        assert not list(problems_of(job_config)), config


def test_options_become_torchtitans_arguments() -> None:
    options = {
        "training": {"steps": 10, "mixed_precision_param": "float32"},
        "compile": {"enable": True, "components": ["model", "loss"]},
        "checkpoint": {"keep_latest_k": 3},
        "debug": {"deterministic": False},
        "activation_checkpoint": "full",
        "parallelism": {"tensor_parallel_degree": 4},
    }
    job_config = torchtitan_job(torchtitan={**LLAMA, "options": options, "metrics_port": 9400})
    gang = kind_of(job_config, "Job")
    container = gang["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    command = container["command"]
    assert command[command.index("training.titan") :] == [
        "training.titan",
        "--module=llama3",
        "--config=llama3_8b",
        "--metrics-port=9400",
        "--training.steps=10",
        "--training.mixed_precision_param=float32",
        "--compile.enable",
        "--compile.components=model,loss",
        "--checkpoint.keep_latest_k=3",
        "--debug.no_deterministic",
        "--parallelism.tensor_parallel_degree=4",
        "activation-checkpoint:full",
    ]
    assert {"name": "RUN_DIR", "value": "/checkpoints/job-0123abcd"} in container["env"]
    assert [port["containerPort"] for port in container["ports"]] == [9400]


def test_prometheus_can_connect_to_the_metrics_port() -> None:
    values = configuration(torchtitan_job(torchtitan={**LLAMA, "metrics_port": 9400}))
    assert 9400 in validate(values).metrics_ports
