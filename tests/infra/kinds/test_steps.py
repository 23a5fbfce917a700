from typing import Any

import pytest

from infra.manifests import Manifest
from kube.names import ROLE_LABEL
from policies.pod_search import find_pods
from policies.resources import Resource
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.jobs import job, mandatory_violations, objects, problems_of

STEPS: dict[str, Any] = {
    "prepare": {"command": ["./prepare"], "writes_datasets": True},
    "evaluate": {
        "command": ["./evaluate"],
        "after": ["train"],
        "gpus": 1,
        "env": {"SPLIT": "test"},
    },
    "export": {"command": ["./export"], "after": ["evaluate"]},
}


def built(kind: str = "volcano") -> dict[str, Manifest]:
    job_config = job(kind, steps=STEPS, after=["prepare"])
    return {manifest["metadata"]["name"]: manifest for manifest in objects(job_config)}


def container(name: str) -> Manifest:
    (found,) = built()[name]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    return dict(found)


def test_each_step_waits_for_its_predecessors() -> None:
    flow = built()["job-0123abcd"]
    assert flow["kind"] == "JobFlow"
    assert flow["spec"]["flows"] == [
        {"name": "0123abcd-train", "dependsOn": {"targets": ["0123abcd-prepare"]}},
        {"name": "0123abcd-prepare"},
        {"name": "0123abcd-evaluate", "dependsOn": {"targets": ["0123abcd-train"]}},
        {"name": "0123abcd-export", "dependsOn": {"targets": ["0123abcd-evaluate"]}},
    ]


def test_templates_are_created_before_the_flow_that_uses_them() -> None:
    *templates, flow = built().values()
    names = {template["metadata"]["name"] for template in templates}
    assert {template["kind"] for template in templates} == {"JobTemplate"}
    assert names == {step["name"] for step in flow["spec"]["flows"]}


def test_training_job_is_the_same_with_and_without_steps() -> None:
    single_node = {"nodes": 1}
    (without_steps,) = objects(job("volcano", **single_node))
    train, *_ = objects(job("volcano", **single_node, steps=STEPS, after=["prepare"]))
    role = train["spec"]["tasks"][0]["template"]["metadata"]["labels"].pop(ROLE_LABEL)
    assert role == "worker"
    assert train["spec"] == without_steps["spec"]


@pytest.mark.parametrize("kind", ["volcano", "mpi"])
def test_only_pods_of_the_gang_count_for_its_placement(kind: str) -> None:
    """Launchers and steps must not determine the gang's zone."""
    pack = {"label": "topology.kubernetes.io/zone", "required": True}
    gang, *other_templates = (
        task["template"]
        for template in objects(job(kind, steps=STEPS, pack=pack))
        for task in reversed(template["spec"].get("tasks", ()))
        if task["name"] != "master"
    )
    affinity = gang["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = gang["spec"]["topologySpreadConstraints"]
    assert len(other_templates) == len(STEPS) + (kind == "mpi")
    for selector in (term["labelSelector"], spread["labelSelector"]):
        selected_labels = selector["matchLabels"].items()
        assert selected_labels <= gang["metadata"]["labels"].items()
        assert not any(
            selected_labels <= other["metadata"]["labels"].items() for other in other_templates
        )


def test_step_runs_its_command_in_one_pod() -> None:
    found = container("0123abcd-evaluate")
    env = {variable["name"]: variable["value"] for variable in found["env"]}
    assert built()["0123abcd-evaluate"]["spec"]["minAvailable"] == 1
    assert found["command"] == ["./evaluate"]
    assert found["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (env["SPLIT"], env["RUN_DIR"]) == ("test", "/checkpoints/job-0123abcd")


def test_network_topology_applies_only_to_the_training() -> None:
    topology = {"mode": "hard", "highest_tier": 2}
    job_config = job("volcano", steps=STEPS, after=["prepare"], network_topology=topology)
    specs = {each["metadata"]["name"]: each["spec"] for each in objects(job_config)}
    assert "networkTopology" in specs["0123abcd-train"]
    assert "networkTopology" not in specs["0123abcd-evaluate"]


def test_step_can_write_datasets_only_with_writes_datasets() -> None:
    def reads_only(name: str) -> bool:
        mounts = {mount["name"]: mount for mount in container(name)["volumeMounts"]}
        return "readOnly" in mounts["datasets"]

    assert not reads_only("0123abcd-prepare")
    assert reads_only("0123abcd-evaluate")


def test_step_pods_have_the_labels_of_the_job() -> None:
    """Azure's workload identity, for example, is enabled by a pod label."""
    identity = {"azure.workload.identity/use": "true"}
    for template in objects(job("volcano", labels=identity, steps=STEPS, after=["prepare"]))[:-1]:
        for labeled in (template, template["spec"]["tasks"][0]["template"]):
            labels = labeled["metadata"]["labels"]
            assert labels.items() >= identity.items()
            assert labels["gpu-platform.dev/run"] == "job-0123abcd"


def test_policy_pack_finds_the_pods_of_every_step() -> None:
    for manifest in built().values():
        resource = Resource(f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}", manifest)
        assert bool(find_pods(resource)) == (manifest["kind"] == "JobTemplate")
    assert mandatory_violations(job("mpi", steps=STEPS, after=["prepare"])) == []


CONDITIONAL: dict[str, Any] = {
    "evaluate": {"command": ["./evaluate"], "after": ["train"], "when": {"accuracy": ">= 0.97"}},
    "export": {"command": ["./export"], "after": ["evaluate"], "retries": 7},
    "report": {"command": ["./report"], "after": ["export"]},
    "prepare": {"command": ["./prepare"]},
}


def conditional(name: str) -> Manifest:
    job_config = job("volcano", steps=CONDITIONAL, after=["prepare"], retries=2)
    built_objects = {manifest["metadata"]["name"]: manifest for manifest in objects(job_config)}
    found: Manifest = built_objects[f"0123abcd-{name}"]["spec"]
    return found


def command(name: str) -> list[str]:
    (main,) = conditional(name)["tasks"][0]["template"]["spec"]["containers"]
    return list(main["command"])


def test_a_step_with_a_condition_evaluates_it_before_its_command() -> None:
    assert command("evaluate") == [
        *("python3", "-m", "workload.step"),
        "--run=/checkpoints/job-0123abcd",
        "--name=evaluate",
        "--when=accuracy >= 0.97",
        "--",
        "./evaluate",
    ]


@pytest.mark.parametrize("name", ["export", "report"])
def test_steps_after_a_skipped_conditional_step_are_skipped_too(name: str) -> None:
    assert command(name)[2:] == [
        *("workload.step", "--run=/checkpoints/job-0123abcd", f"--name={name}"),
        *("--after=evaluate", "--", f"./{name}"),
    ]


def test_step_before_a_conditional_step_is_unchanged() -> None:
    assert command("prepare") == ["./prepare"]


def test_steps_can_override_the_number_of_retries() -> None:
    found = {name: conditional(name)["maxRetry"] for name in ("train", "evaluate", "export")}
    assert found == {"train": 2, "evaluate": 2, "export": 7}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"when": {"accuracy": ">= 0.97"}}, "does not run after training"),
        ({"after": ["train"], "when": {"accuracy": ">= incumbent"}}, "compare with a number"),
        ({"after": ["train"], "when": {"accuracy": "0.97"}}, "must compare"),
        ({"after": ["train"], "when": {"a b": ">= 1"}}, "name of a metric"),
        ({"retries": 0}, "retries"),
    ],
)
def test_invalid_condition_of_a_step_is_rejected(step: dict[str, Any], text: str) -> None:
    (problem,) = problems_of(job("volcano", steps={"x": {"command": ["./x"], **step}}))
    assert text in problem


FOR_EACH_STEPS: dict[str, Any] = {
    "prepare": {"command": ["./prepare", "--part=$(ITEM)"], "for_each": ["train", "test"]},
    "evaluate": {
        "command": ["./evaluate", "$(ITEM)"],
        "after": ["train"],
        "gpus": 1,
        "for_each": ["clean", "noisy", "dark"],
        "when": {"accuracy": ">= 0.5"},
    },
    "report": {"command": ["./report"], "after": ["evaluate"]},
}


def for_each_objects() -> dict[str, Manifest]:
    job_config = job("volcano", steps=FOR_EACH_STEPS, after=["prepare"])
    assert mandatory_violations(job_config) == []
    return {manifest["metadata"]["name"]: manifest for manifest in objects(job_config)}


def test_for_each_steps_run_in_parallel_and_successors_wait_for_all() -> None:
    flows = {flow["name"]: flow for flow in for_each_objects()["job-0123abcd"]["spec"]["flows"]}
    targets = {
        name.removeprefix("0123abcd-"): [
            target.removeprefix("0123abcd-")
            for target in flow.get("dependsOn", {}).get("targets", ())
        ]
        for name, flow in flows.items()
    }
    evaluations = [f"evaluate-{index}" for index in range(3)]
    assert targets == {
        "train": ["prepare-0", "prepare-1"],
        "prepare-0": [],
        "prepare-1": [],
        **{name: ["train"] for name in evaluations},
        "report": evaluations,
    }


def test_each_for_each_step_gets_its_value_as_a_variable() -> None:
    built_objects = for_each_objects()
    values = []
    for index in range(3):
        spec = built_objects[f"0123abcd-evaluate-{index}"]["spec"]["tasks"][0]["template"]["spec"]
        (main,) = spec["containers"]
        values += [each["value"] for each in main["env"] if each["name"] == "ITEM"]
        assert f"--name=evaluate-{index}" in main["command"]
        assert main["command"][-1] == "$(ITEM)"
    assert values == ["clean", "noisy", "dark"]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            {"a": {"command": ["x"], "for_each": ["1"]}, "a-0": {"command": ["x"]}},
            "has two steps named a-0 (steps.a.for_each creates one",
        ),
        (
            {"a": {"command": ["x"], "for_each": ["1"], "env": {"ITEM": "2"}}},
            "env.ITEM, which for_each also sets",
        ),
    ],
    ids=["step name", "environment variable"],
)
def test_conflicting_for_each_names_are_rejected(steps: dict[str, Any], text: str) -> None:
    (problem,) = problems_of(job("volcano", steps=steps))
    assert text in problem


PIPELINE: dict[str, Any] = {
    "prepare": {
        "command": ["./prepare", "$(outputs.rows)", "--table=$(outputs.table)"],
        "outputs": {"rows": "number", "table": "text/csv"},
        "env": {"SPLIT": "all"},
    },
    "check": {
        "command": ["./check", "$(inputs.table)", "$(ITEM)", "$(outputs.share)"],
        "inputs": {"table": "prepare.table"},
        "outputs": {"share": "number"},
        "for_each": ["clean", "noisy"],
        "cache": False,
    },
    "report": {
        "command": ["./report", "$(inputs.shares)", "$(inputs.export)", "$(inputs.accuracy)"],
        "inputs": {"shares": "check.share", "export": "train.export", "accuracy": "train.accuracy"},
    },
}


def pipeline(**changes: Any) -> dict[str, Manifest]:
    job_config = job("volcano", steps=PIPELINE, **changes)
    assert mandatory_violations(job_config) == []
    return {manifest["metadata"]["name"]: manifest for manifest in objects(job_config)}


def command_of(built_objects: dict[str, Manifest], name: str) -> list[str]:
    spec = built_objects[f"0123abcd-{name}"]["spec"]["tasks"][0]["template"]["spec"]
    return list(spec["containers"][0]["command"])


def test_step_waits_for_the_steps_that_produce_its_inputs() -> None:
    built_objects = pipeline(
        inputs={"epochs": "prepare.rows"}, hyperparameters={"model": "digits-net"}
    )
    after = {
        flow["name"].removeprefix("0123abcd-"): [
            target.removeprefix("0123abcd-")
            for target in flow.get("dependsOn", {}).get("targets", ())
        ]
        for flow in built_objects["job-0123abcd"]["spec"]["flows"]
    }
    assert after == {
        "train": ["prepare"],
        "prepare": [],
        "check-0": ["prepare"],
        "check-1": ["prepare"],
        "report": ["check-0", "check-1", "train"],
    }


def test_cache_key_of_a_step_includes_image_command_and_variables() -> None:
    assert command_of(pipeline(), "prepare") == [
        *("python3", "-m", "workload.step"),
        *("--run=/checkpoints/job-0123abcd", "--name=prepare"),
        *("--output=rows=number", "--output=table=text/csv"),
        *(f"--image={TRAINING_IMAGE}", "--env=SPLIT", "--"),
        *("./prepare", "$(outputs.rows)", "--table=$(outputs.table)"),
    ]


def test_cache_key_of_a_for_each_step_includes_its_value() -> None:
    options = command_of(pipeline(), "check-1")
    assert {"--name=check-1", "--env=ITEM", "--no-cache", "--input=table=prepare.table"} <= {
        *options
    }


def test_outputs_of_for_each_steps_become_one_list_input() -> None:
    options = command_of(pipeline(), "report")
    assert [option for option in options if option.startswith("--input=")] == [
        "--input=shares=[check-0.share,check-1.share]",
        "--input=export=train.export",
        "--input=accuracy=train.accuracy",
    ]
    assert "--image" not in " ".join(options)


def test_training_inputs_become_hyperparameters() -> None:
    built_objects = pipeline(
        inputs={"epochs": "prepare.rows"}, hyperparameters={"model": "digits-net"}
    )
    command = command_of(built_objects, "train")
    start = command.index("--") + 1
    assert command[:start] == [
        *("python3", "-m", "workload.step"),
        *("--run=/checkpoints/job-0123abcd", "--name=train"),
        *("--input=epochs=prepare.rows", "--"),
    ]
    assert command[start : start + 3] == ["python3", "-m", "training.launch"]
    assert command[-1] == "--epochs=$(inputs.epochs)"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"inputs": {"epochs": "prepar.rows"}},
            "refers to 'prepar' in inputs.epochs, but has no such step",
        ),
        (
            {"inputs": {"epochs": "prepare.row"}},
            "step prepare has no output 'row' (outputs: rows, table)",
        ),
        (
            {"inputs": {"batch_size": "prepare.table"}},
            "its type is text/csv, and the hyperparameter is of type integer",
        ),
        (
            {"inputs": {"loss": "prepare.rows"}},
            "its type is number, and the hyperparameter is of type string",
        ),
        ({"inputs": {"epoch": "prepare.rows"}}, "no hyperparameter 'epoch'"),
        ({"inputs": {"data_dir": "prepare.table"}}, "no hyperparameter 'data_dir'"),
        (
            {"hyperparameters": {"epochs": 3}, "inputs": {"epochs": "prepare.rows"}},
            "hyperparameters.epochs is also set",
        ),
        ({"inputs": {"epochs": "check.share"}}, "has for_each, so the output is a list"),
        ({"inputs": {"epochs": "report.x"}}, "wait for each other"),
        (
            {"steps": {"a": {"command": ["$(inputs.x)"]}}},
            "uses $(inputs.x), but has no steps.a.inputs.x: declare it",
        ),
        (
            {"steps": {"a": {"command": ["x"], "outputs": {"y": "text"}}}},
            "the command must write the output to the file $(outputs.y)",
        ),
        (
            {"steps": {"a": {"command": ["$(outputs.y)"], "outputs": {"y": "csv"}}}},
            "must be number, text, boolean, or the media type",
        ),
        (
            {"steps": {"a": {"command": ["x"], "cache": False}}},
            "sets cache: false but has no outputs",
        ),
        ({"steps": {"a": {"command": ["x"], "inputs": {"y": "b"}}}}, "must be <step>.<output>"),
        (
            {"command": ["./run", "$(inputs.rows)"], "hyperparameters": None},
            "uses $(inputs.rows), but has no inputs.rows",
        ),
    ],
)
def test_inconsistent_inputs_and_outputs_are_rejected(changes: dict[str, Any], text: str) -> None:
    values = {"steps": PIPELINE, "hyperparameters": {"model": "digits-net"}, **changes}
    found = problems_of(job("volcano", **values))
    assert any(text in sentence for sentence in found), found


def test_step_that_writes_datasets_mounts_other_claims_read_only() -> None:
    volumes = {"scores": {"claim": "checkpoints", "path": "/scores", "read_only": True}}
    job_config = job("volcano", steps=STEPS, volumes=volumes)
    built_objects = {each["metadata"]["name"]: each for each in objects(job_config)}
    (found,) = built_objects["0123abcd-prepare"]["spec"]["tasks"][0]["template"]["spec"][
        "containers"
    ]
    read_only = {mount["mountPath"]: "readOnly" in mount for mount in found["volumeMounts"]}
    assert (read_only["/data"], read_only["/scores"]) == (False, True)
