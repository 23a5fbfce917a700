"""Mistakes in one job, each reported with the job's key, the setting and a remedy."""

from typing import Any

import pytest

from infra.settings import SettingsError, validate
from infra.settings.training.checks import LIMITED_SETTINGS, LimitedSetting
from kube.kinds import KINDS
from kube.names import DATASETS_PATH
from tests.infra.examples import changed, good
from tests.infra.jobs import configuration, job, problems_of

JOB = "gpu-platform:training.jobs.job"
RDMA = {"resource": "rdma/hca", "interface": "ib0"}
STEP = {"command": ["./step"]}
DOWNLOAD = {"dataset": "shards", "data_url": "s3://datasets/birds"}

# name: (job, start of the error after the job's key, remedy)
MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no program": (job("volcano", hyperparameters=None), " has no program", "titan or command"),
    "two programs": (job("volcano", command=["a"]), " sets hyperparameters and command", "one of"),
    "empty command": (job("plain", command=[]), ".command", "1 or more"),
    "minimum above maximum": (job("volcano", min_nodes=3), " sets min_nodes to 3", "nodes (2)"),
    "pod with more GPUs than a node": (
        job("volcano", node_gpus=2),
        " sets gpus_per_node to 4",
        "gpus_per_node to 4",
    ),
    "two GPU models": (
        job("volcano", gpu_product="A", node_selector={"nvidia.com/gpu.product": "B"}),
        " sets gpu_product to 'A', but node_selector",
        "remove one of them",
    ),
    "volume that hides the program": (
        job("volcano", volumes={"code": {"path": "/app", "scratch": "1Gi"}}),
        " has a volume at /app",
        "choose another",
    ),
    "NCCL variable from a Secret": (
        job(
            "volcano", nccl={"network": "tcp"}, env_from={"NCCL_DEBUG": {"secret": "a", "key": "b"}}
        ),
        " sets NCCL_DEBUG in env_from",
        "in only one of them",
    ),
    "step with more GPUs than a node": (
        job("volcano", node_gpus=4, steps={"evaluate": {**STEP, "gpus": 8}}),
        " sets steps.evaluate.gpus to 8",
        "more than node_gpus (4)",
    ),
    "too much shared memory": (job("volcano", shm="60Gi"), " has shm 60Gi", "may use 80%"),
    "whole nodes without spread": (
        job("volcano", whole_node=True, spread=False),
        " sets whole_node",
        "remove spread",
    ),
    "NCCL network with a single node": (
        job("volcano", nodes=1, nccl={"network": "tcp"}),
        " sets nccl, but",
        "remove nccl",
    ),
    "InfiniBand without a device": (
        job("volcano", nccl={"network": "infiniband"}),
        " sets nccl.network to 'infiniband'",
        "rdma.resource",
    ),
    "TCP network with an RDMA device": (
        job("volcano", nccl={"network": "tcp"}, rdma=RDMA),
        " sets rdma, which nccl.network 'tcp' does not use",
        "remove rdma",
    ),
    "field for another network": (
        job("volcano", nccl={"network": "tcp", "gid_index": 3}),
        ".nccl sets gid_index",
        "roce",
    ),
    "too many sockets": (
        job("volcano", nccl={"network": "tcp", "socket_threads": 16, "sockets_per_thread": 8}),
        ".nccl has more than 64",
        "set fewer",
    ),
    "variable in two places": (
        job("volcano", nccl={"network": "tcp"}, env={"NCCL_NET": "IB"}),
        " sets NCCL_NET in env",
        "in only one of them",
    ),
    "variable as both value and reference": (
        job("volcano", env={"A": "1"}, env_from={"A": {"secret": "s", "key": "k"}}),
        " sets A in both env",
        "one of them",
    ),
    "reference without a source": (
        job("volcano", env_from={"A": {"key": "k"}}),
        ".env_from.A must set exactly one",
        "secret and config_map",
    ),
    "volume without a source": (
        job("volcano", volumes={"x": {"path": "/x"}}),
        ".volumes.x must set exactly one",
        "scratch",
    ),
    "volume with two sources": (
        job("volcano", volumes={"x": {"path": "/x", "secret": "s", "scratch": "1Gi"}}),
        ".volumes.x must set exactly one",
        "secret and scratch",
    ),
    "volume below another volume's path": (
        job("volcano", volumes={"x": {"path": "/checkpoints/x", "scratch": "1Gi"}}),
        ".volumes.x sets path to /checkpoints/x",
        "choose another",
    ),
    "volume at the path of Volcano's host names": (
        job("volcano", volumes={"x": {"path": "/etc/volcano", "scratch": "1Gi"}}),
        ".volumes.x sets path to /etc/volcano",
        "choose another",
    ),
    "volumes at the same path": (
        job(
            "volcano",
            volumes={"x": {"path": "/x", "scratch": "1Gi"}, "y": {"path": "/x/", "scratch": "1Gi"}},
        ),
        " has two volumes at /x",
        "a different path",
    ),
    "dataset download to a read-only claim": (
        job("volcano", datasets="datasets", hyperparameters=DOWNLOAD),
        " sets hyperparameters.data_url, but datasets 'datasets'",
        "remove one of them",
    ),
    "dataset download without a volume": (
        job("volcano", datasets=None, hyperparameters=DOWNLOAD),
        " sets hyperparameters.data_url, but has no writable volume at /data",
        "scratch: 100Gi",
    ),
    "volume below the datasets": (
        job("volcano", volumes={"x": {"path": "/data/x", "scratch": "1Gi"}}),
        " has a volume at /data/x, but the datasets claim ('datasets')",
        "remove datasets",
    ),
    "volume with a reserved name": (
        job("volcano", volumes={"tmp": {"path": "/x", "scratch": "1Gi"}}),
        " has a volume 'tmp'",
        "choose another",
    ),
    "volume with an unknown claim": (
        job("volcano", volumes={"x": {"path": "/x", "claim": "nothing"}}),
        ".volumes.x.claim",
        "use checkpoints or datasets",
    ),
    "annotation that the stack sets": (
        job("volcano", annotations={"scheduling.k8s.io/group-name": "other"}),
        " sets annotations.scheduling.k8s.io/group-name",
        "leave it out",
    ),
    "exit code 0 as fatal": (job("volcano", fatal_exit_codes=[0]), ".fatal_exit_codes", "at least"),
    "duplicate exit code": (
        job("volcano", fatal_exit_codes=[3, 3]),
        ".fatal_exit_codes",
        "only once",
    ),
    "network tier without hard mode": (
        job("volcano", network_topology={"mode": "soft", "highest_tier": 2}),
        ".network_topology has mode 'soft'",
        "mode is hard",
    ),
    "step named train": (
        job("volcano", steps={"train": STEP}),
        " has a step 'train'",
        "another name",
    ),
    "step after an unknown step": (
        job("volcano", steps={"a": {**STEP, "after": ["b"]}}),
        " refers to 'b' in steps.a.after",
        "train",
    ),
    "training after an unknown step": (
        job("volcano", after=["prepare"]),
        " refers to 'prepare' in after",
        "none",
    ),
    "cycle of steps": (
        job("volcano", steps={"a": {**STEP, "after": ["train"]}}, after=["a"]),
        " has steps that wait for each other",
        "train",
    ),
    "stopped job with steps": (
        job("volcano", steps={"a": STEP}, state="stopped"),
        " has steps, but state is 'stopped'",
        "delete the JobFlow",
    ),
    "writes_datasets without datasets": (
        job("volcano", datasets=None, steps={"a": {**STEP, "writes_datasets": True}}),
        " has a step with writes_datasets",
        "set datasets",
    ),
    "setting that only PyTorch's program supports": (
        job(
            "tensorflow",
            hyperparameters={"model": "digits-net", "dataset": "digits", "weight_decay": 0.1},
        ),
        " has invalid hyperparameters: weight_decay",
        "leave it out",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key_and_a_remedy(mistake: str) -> None:
    job_config, start, advice = MISTAKES[mistake]
    (sentence,) = problems_of(job_config)
    assert sentence.startswith(f"{JOB}{start}")
    assert advice in sentence


def test_dataset_can_be_downloaded_to_a_volume() -> None:
    volumes = {"data": {"path": DATASETS_PATH, "scratch": "100Gi"}}
    job_config = job("volcano", datasets=None, hyperparameters=DOWNLOAD, volumes=volumes)
    assert problems_of(job_config) == []


REQUESTS: dict[str, dict[str, Any]] = {
    "hyperparameters": {"hyperparameters": {"epochs": 3}, "command": None},
    "torchtitan": {
        "torchtitan": {"module": "llama3", "config": "llama3_8b"},
        "hyperparameters": None,
        "command": None,
        "image": "titan",
    },
    "min_nodes": {"min_nodes": 1},
    "deadline_seconds": {"deadline_seconds": 60},
    "attempt_deadline_seconds": {"attempt_deadline_seconds": 60},
    "state: suspended": {"state": "suspended"},
    "state: stopped": {"state": "stopped"},
    "fatal_exit_codes": {"fatal_exit_codes": [64]},
    "steps": {"steps": {"prepare": STEP}},
    "inputs": {
        "steps": {
            "prepare": {"command": ["x", "$(outputs.epochs)"], "outputs": {"epochs": "number"}}
        },
        "inputs": {"epochs": "prepare.epochs"},
        "hyperparameters": {"model": "digits-net", "dataset": "digits"},
        "command": None,
    },
    "schedule": {"schedule": {"cron": "0 3 * * *"}},
    "launcher": {"launcher": {}},
    "success: all": {"success": "all"},
    "success: first": {"success": "first"},
    "notebook": {"notebook": {"home": "checkpoints", "token_secret": "anna"}},
}


@pytest.mark.parametrize(
    "limited_setting", LIMITED_SETTINGS, ids=lambda limited_setting: limited_setting.title
)
def test_error_for_an_unsupported_setting_lists_the_supporting_kinds(
    limited_setting: LimitedSetting,
) -> None:
    for kind in KINDS:
        _assert_only_supported_by(kind, limited_setting)


def _assert_only_supported_by(kind: Any, limited_setting: LimitedSetting) -> None:
    requested = REQUESTS[limited_setting.capability]
    if limited_setting.key == "hyperparameters" and kind == "tensorflow":
        requested = {}
    found = problems_of(job(kind, **requested))
    if kind in limited_setting.kinds:
        assert found == []
        return
    assert any(
        sentence.startswith(JOB)
        and f"sets {limited_setting.key} to " in sentence
        and f"kind {kind!r} does not support" in sentence
        and all(name in sentence for name in limited_setting.kinds)
        for sentence in found
    ), found


def test_all_mistakes_of_a_job_are_reported_at_once() -> None:
    (sentence,) = problems_of(job("mpi", min_nodes=1, state="suspended", deadline_seconds=5))
    assert all(key in sentence for key in ("min_nodes", "state", "deadline_seconds"))


def test_host_network_requires_a_privileged_namespace() -> None:
    values = configuration(job("volcano", host_network=True))
    values["tenancy"]["pod_security"] = "baseline"
    with pytest.raises(SettingsError, match="host_network is true, which only 'privileged'"):
        validate(values)


@pytest.mark.parametrize(("version", "is_supported"), [("1.11.0", False), ("1.12.0", True)])
def test_network_topology_requires_a_supporting_scheduler(version: str, is_supported: bool) -> None:
    values = configuration(job("volcano", network_topology={"mode": "soft"}))
    values["volcano"]["version"] = version
    if is_supported:
        validate(values)
        return
    with pytest.raises(SettingsError, match=r"network_topology is set, but.*1\.11\.0"):
        validate(values)


def test_kind_limits_the_length_of_names() -> None:
    values = configuration(job("ray"))
    values["training"]["jobs"] = {"j" * 40: job("ray")}
    with pytest.raises(SettingsError, match="the kind allows 47"):
        validate(values)
    values["training"]["jobs"] = {"j" * 40: job("trainjob", nodes=10)}
    with pytest.raises(SettingsError, match="49 characters, but the kind allows 48"):
        validate(values)
    values["training"]["jobs"] = {"j" * 30: job("volcano", steps={"prepare": STEP})}
    validate(values)
    values["training"]["jobs"] = {"j" * 30: job("volcano", steps={"prepare-all": STEP})}
    with pytest.raises(SettingsError, match=r"the step 'prepare-all'.*but at most 63 are allowed"):
        validate(values)


@pytest.mark.parametrize(
    ("kind", "characters", "settings"),
    [
        ("volcano", 31, {"steps": {"prepare": STEP}}),
        ("volcano", 31, {"schedule": {"cron": "0 3 * * *"}}),
        ("mpi", 29, {"steps": {"prepare": STEP}, "nodes": 2}),
    ],
)
def test_steps_and_schedules_shorten_the_maximum_name_length(
    kind: str, characters: int, settings: dict[str, Any]
) -> None:
    values = configuration(job("volcano"))
    values["training"]["jobs"] = {"j" * characters: job(kind, **settings)}
    with pytest.raises(SettingsError, match=r"the step 'train'.* 64 characters, but at most 63"):
        validate(values)
    values["training"]["jobs"] = {"j" * (characters - 1): job(kind, **settings)}
    validate(values)


def test_fixed_run_name_cannot_be_too_long() -> None:
    values = configuration(job("volcano", run="r" * 55))
    with pytest.raises(
        SettingsError, match=r"55 characters, but the kind allows 54.*shorter `run`"
    ):
        validate(values)
    values["training"]["jobs"] = {"j" * 40: job("trainjob", nodes=10, run="short")}
    validate(values)


NOTEBOOK = {"home": "checkpoints", "token_secret": "anna"}


@pytest.mark.parametrize(
    ("kind", "changes", "has_service"),
    [
        ("volcano", {}, True),
        ("volcano", {"nodes": 1}, False),
        ("volcano", {"nodes": 1, "steps": {"prepare": STEP}}, False),
        ("plain", {"nodes": 1}, True),
        ("pytorch", {"nodes": 1}, True),
        ("notebook", {}, True),
        ("notebook", {"notebook": NOTEBOOK}, False),
    ],
)
def test_fixed_run_name_must_begin_with_a_letter_if_a_service_has_it(
    kind: str, changes: dict[str, Any], has_service: bool
) -> None:
    found = problems_of(job(kind, run="2026-final", **changes))
    assert len(found) == has_service
    assert all(sentence.startswith(f"{JOB} sets run to '2026-final'") for sentence in found)
    assert problems_of(job(kind, run="final-2026", **changes)) == []


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ({"run": "same"}, {"run": "same"}, "would both create the run 'same': change `run`"),
        (
            {"run": "vision-final", "steps": {"prepare": STEP}},
            {"run": "text-final", "steps": {"prepare": STEP}},
            "would both create the JobTemplate 'final-train'",
        ),
    ],
)
def test_fixed_run_names_must_be_distinct(
    first: dict[str, Any], second: dict[str, Any], problem: str
) -> None:
    values = configuration(job("volcano"))
    values["training"]["jobs"] = {"a": job("plain", **first), "b": job("plain", **second)}
    with pytest.raises(SettingsError, match=problem):
        validate(values)
    values["training"]["jobs"]["b"]["run"] = "text-other"
    validate(values)


def daily(hour: int) -> dict[str, Any]:
    return {"schedule": {"cron": f"0 {hour} * * *", "image": "training"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [({"steps": {"prepare": STEP}}, {"steps": {"prepare": STEP}}), (daily(3), daily(15))],
)
def test_jobs_that_flows_start_must_have_different_settings(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    values = configuration(job("volcano"))
    values["training"]["jobs"] = {"a": job("volcano", **first), "b": job("volcano", **second)}
    values["inference"] = {}
    with pytest.raises(SettingsError, match="both would create the same JobTemplates"):
        validate(values)
    values["training"]["jobs"]["b"]["attempt"] = 2
    validate(values)


@pytest.mark.parametrize(
    ("kind", "nodes", "port", "is_used"),
    [
        ("volcano", 2, 23456, True),
        ("volcano", 1, 23456, False),
        ("volcano", 2, 2222, False),
        ("indexed", 2, 23456, True),
        ("trainjob", 2, 29500, True),
        ("mpi", 1, 2222, True),
    ],
)
def test_metrics_port_must_differ_from_other_ports_of_the_pods(
    kind: str, nodes: int, port: int, is_used: bool
) -> None:
    config = {**job(kind)["hyperparameters"], "metrics_port": port}
    found = problems_of(job(kind, nodes=nodes, hyperparameters=config))
    problem = f"{JOB} sets metrics_port to {port}, which is in use in the pods of"
    assert [each.startswith(problem) for each in found] == ([True] if is_used else [])


def test_tensorflow_job_cannot_be_served() -> None:
    values = configuration(job("tensorflow"))
    values["inference"] = {"services": {"s": {"job": "job", "cpu": 1, "memory": "2Gi"}}}
    with pytest.raises(
        SettingsError, match=r"inference\.services\.s\.job is 'job', which has kind"
    ):
        validate(values)


def test_claims_mounted_by_several_pods_must_be_shared() -> None:
    values = configuration(job("mpi", nodes=1, volumes={"x": {"path": "/x", "claim": "scratch"}}))
    read_write_once = {"size": "1Gi", "storage_class": "shared", "access_modes": ["ReadWriteOnce"]}
    values["storage"]["claims"]["scratch"] = read_write_once
    with pytest.raises(SettingsError, match=r"volumes\.x\.claim is 'scratch'.*ReadWriteMany"):
        validate(values)


@pytest.mark.parametrize(
    ("gpus", "memory", "size"),
    [(8, "480Gi", "32Gi"), (1, "64Gi", "4Gi"), (4, "16Gi", "8Gi"), (1, "1000Mi", "500Mi")],
)
def test_default_shared_memory_is_4gi_per_gpu_and_at_most_half_the_memory(
    gpus: int, memory: str, size: str
) -> None:
    settings = validate(configuration(job("volcano", gpus_per_node=gpus, memory=memory)))
    assert settings.training.jobs["job"].shared_memory == size


def test_credentials_in_a_url_are_not_printed() -> None:
    secret = {"run_url": "s3://me:correct-horse@models/runs"}
    [problem] = problems_of(job("volcano", hyperparameters=secret))
    assert "run_url is not a directory in an object store" in problem
    assert "correct-horse" not in problem


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *(
            ("training.jobs.digits.env", {name: "x"}, f"sets {name}, which")
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "RUN_DIR", "LD_PRELOAD")
        ),
        ("training.jobs.digits.attempt_deadline_seconds", 59, "less than grace_seconds (60)"),
        *(
            (f"{owner}annotations", {"a": "x" * 300_000}, f"{owner}annotations has 300001 bytes,")
            for owner in ("training.jobs.digits.", "cluster.", "tenancy.identities.training.")
        ),
        ("cluster.context", "a\nb", "on a single line"),
        ("cluster.kubeconfig", "apiVersion: v1\nkind: Config", "on a single line"),
        ("cluster.kubeconfig", '{"apiVersion": "v1"}', "must be the path of the kubeconfig file"),
        ("inference.services.digits.max_unavailable", 9, "a node drain may stop all of them"),
    ],
)
def test_settings_that_would_fail_later_are_rejected(path: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingsError) as exc_info:
        validate(changed(path, value))
    assert expected in str(exc_info.value)


def test_ordinary_variables_and_deadlines_are_accepted() -> None:
    values = good()
    values["training"]["jobs"]["digits"] |= {
        "env": {"OMPI_RANKFILE": "x", "MY_RANK": "1"},
        "attempt_deadline_seconds": 60,
        "annotations": {"a": "x" * 1000},
    }
    validate(values)
