from typing import Any

import pytest

from infra.manifests import Manifest
from kube.names import ROLE_LABEL
from policies.pod_search import find_pods
from policies.resources import Resource
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.jobs import job, objects, problems_of, refused

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
    described = job(kind, steps=STEPS, after=["prepare"])
    return {manifest["metadata"]["name"]: manifest for manifest in objects(described)}


def container(name: str) -> Manifest:
    (found,) = built()[name]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    return dict(found)


def test_each_step_waits_for_the_preceding_ones() -> None:
    flow = built()["job-0123abcd"]
    assert flow["kind"] == "JobFlow"
    assert flow["spec"]["flows"] == [
        {"name": "0123abcd-train", "dependsOn": {"targets": ["0123abcd-prepare"]}},
        {"name": "0123abcd-prepare"},
        {"name": "0123abcd-evaluate", "dependsOn": {"targets": ["0123abcd-train"]}},
        {"name": "0123abcd-export", "dependsOn": {"targets": ["0123abcd-evaluate"]}},
    ]


def test_the_templates_precede_the_flow_that_names_them() -> None:
    *templates, flow = built().values()
    names = {template["metadata"]["name"] for template in templates}
    assert {template["kind"] for template in templates} == {"JobTemplate"}
    assert names == {step["name"] for step in flow["spec"]["flows"]}


def test_the_training_is_the_same_job_as_without_steps() -> None:
    placed = {"nodes": 1}
    (alone,) = objects(job("volcano", **placed))
    train, *_ = objects(job("volcano", **placed, steps=STEPS, after=["prepare"]))
    role = train["spec"]["tasks"][0]["template"]["metadata"]["labels"].pop(ROLE_LABEL)
    assert role == "worker"
    assert train["spec"] == alone["spec"]


@pytest.mark.parametrize("kind", ["volcano", "mpi"])
def test_only_pods_of_the_gang_count_when_it_is_placed(kind: str) -> None:
    """A launcher or a step must not determine the zone of the gang."""
    pack = {"label": "topology.kubernetes.io/zone", "required": True}
    gang, *others = (
        task["template"]
        for template in objects(job(kind, steps=STEPS, pack=pack))
        for task in reversed(template["spec"].get("tasks", ()))
        if task["name"] != "master"
    )
    affinity = gang["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = gang["spec"]["topologySpreadConstraints"]
    assert len(others) == len(STEPS) + (kind == "mpi")
    for selector in (term["labelSelector"], spread["labelSelector"]):
        counted = selector["matchLabels"].items()
        assert counted <= gang["metadata"]["labels"].items()
        assert not any(counted <= other["metadata"]["labels"].items() for other in others)


def test_a_step_is_one_pod_with_a_command_in_the_jobs_image() -> None:
    found = container("0123abcd-evaluate")
    env = {variable["name"]: variable["value"] for variable in found["env"]}
    assert built()["0123abcd-evaluate"]["spec"]["minAvailable"] == 1
    assert found["command"] == ["./evaluate"]
    assert found["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (env["SPLIT"], env["RUN_DIR"]) == ("test", "/checkpoints/job-0123abcd")


def test_the_network_topology_is_that_of_the_training_alone() -> None:
    topology = {"mode": "hard", "highest_tier": 2}
    described = job("volcano", steps=STEPS, after=["prepare"], network_topology=topology)
    specs = {made["metadata"]["name"]: made["spec"] for made in objects(described)}
    assert "networkTopology" in specs["0123abcd-train"]
    assert "networkTopology" not in specs["0123abcd-evaluate"]


def test_only_a_step_with_writes_datasets_may_write_datasets() -> None:
    def reads_only(name: str) -> bool:
        mounts = {mount["name"]: mount for mount in container(name)["volumeMounts"]}
        return "readOnly" in mounts["datasets"]

    assert not reads_only("0123abcd-prepare")
    assert reads_only("0123abcd-evaluate")


def test_the_pods_of_a_step_have_the_labels_of_the_job() -> None:
    """They need, for example, the label for Azure's workload identity."""
    identity = {"azure.workload.identity/use": "true"}
    for template in objects(job("volcano", labels=identity, steps=STEPS, after=["prepare"]))[:-1]:
        for made in (template, template["spec"]["tasks"][0]["template"]):
            labels = made["metadata"]["labels"]
            assert labels.items() >= identity.items()
            assert labels["gpu-platform.dev/run"] == "job-0123abcd"


def test_the_pack_sees_the_pods_of_every_step() -> None:
    for manifest in built().values():
        resource = Resource(f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}", manifest)
        assert bool(find_pods(resource)) == (manifest["kind"] == "JobTemplate")
    assert refused(job("mpi", steps=STEPS, after=["prepare"])) == []


CONDITIONAL: dict[str, Any] = {
    "evaluate": {"command": ["./evaluate"], "after": ["train"], "when": {"accuracy": ">= 0.97"}},
    "export": {"command": ["./export"], "after": ["evaluate"], "retries": 7},
    "report": {"command": ["./report"], "after": ["export"]},
    "prepare": {"command": ["./prepare"]},
}


def conditional(name: str) -> Manifest:
    described = job("volcano", steps=CONDITIONAL, after=["prepare"], retries=2)
    made = {manifest["metadata"]["name"]: manifest for manifest in objects(described)}
    found: Manifest = made[f"0123abcd-{name}"]["spec"]
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
def test_steps_after_a_condition_are_skipped_with_it(name: str) -> None:
    assert command(name)[2:] == [
        *("workload.step", "--run=/checkpoints/job-0123abcd", f"--name={name}"),
        *("--after=evaluate", "--", f"./{name}"),
    ]


def test_a_step_before_a_condition_is_unchanged() -> None:
    assert command("prepare") == ["./prepare"]


def test_a_step_may_have_its_own_number_of_retries() -> None:
    found = {name: conditional(name)["maxRetry"] for name in ("train", "evaluate", "export")}
    assert found == {"train": 2, "evaluate": 2, "export": 7}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"when": {"accuracy": ">= 0.97"}}, "does not run after the training"),
        ({"after": ["train"], "when": {"accuracy": ">= incumbent"}}, "compare with a number"),
        ({"after": ["train"], "when": {"accuracy": "0.97"}}, "must compare"),
        ({"after": ["train"], "when": {"a b": ">= 1"}}, "name of a metric"),
        ({"retries": 0}, "retries"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(step: dict[str, Any], text: str) -> None:
    (problem,) = problems_of(job("volcano", steps={"x": {"command": ["./x"], **step}}))
    assert text in problem


FANNED: dict[str, Any] = {
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


def fanned() -> dict[str, Manifest]:
    described = job("volcano", steps=FANNED, after=["prepare"])
    assert refused(described) == []
    return {manifest["metadata"]["name"]: manifest for manifest in objects(described)}


def test_a_step_for_each_value_runs_at_the_same_time_and_is_awaited() -> None:
    flows = {flow["name"]: flow for flow in fanned()["job-0123abcd"]["spec"]["flows"]}
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


def test_each_value_is_a_variable_of_its_step() -> None:
    made = fanned()
    values = []
    for index in range(3):
        spec = made[f"0123abcd-evaluate-{index}"]["spec"]["tasks"][0]["template"]["spec"]
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
    ids=["name", "variable"],
)
def test_an_ambiguous_fan_out_is_refused(steps: dict[str, Any], text: str) -> None:
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
        "inputs": {
            "shares": "check.share",
            "export": "train.export",
            "accuracy": "train.accuracy",
        },
    },
}


def pipeline(**changes: Any) -> dict[str, Manifest]:
    described = job("volcano", steps=PIPELINE, **changes)
    assert refused(described) == []
    return {manifest["metadata"]["name"]: manifest for manifest in objects(described)}


def command_of(made: dict[str, Manifest], name: str) -> list[str]:
    spec = made[f"0123abcd-{name}"]["spec"]["tasks"][0]["template"]["spec"]
    return list(spec["containers"][0]["command"])


def test_a_step_waits_for_those_whose_outputs_it_takes() -> None:
    made = pipeline(inputs={"epochs": "prepare.rows"}, hyperparameters={"model": "digits-net"})
    after = {
        flow["name"].removeprefix("0123abcd-"): [
            target.removeprefix("0123abcd-")
            for target in flow.get("dependsOn", {}).get("targets", ())
        ]
        for flow in made["job-0123abcd"]["spec"]["flows"]
    }
    assert after == {
        "train": ["prepare"],
        "prepare": [],
        "check-0": ["prepare"],
        "check-1": ["prepare"],
        "report": ["check-0", "check-1", "train"],
    }


def test_a_step_with_outputs_is_identified_by_image_command_and_variables() -> None:
    assert command_of(pipeline(), "prepare") == [
        *("python3", "-m", "workload.step"),
        *("--run=/checkpoints/job-0123abcd", "--name=prepare"),
        *("--output=rows=number", "--output=table=text/csv"),
        *(f"--image={TRAINING_IMAGE}", "--env=SPLIT", "--"),
        *("./prepare", "$(outputs.rows)", "--table=$(outputs.table)"),
    ]


def test_an_element_of_a_fan_out_is_identified_by_its_value() -> None:
    options = command_of(pipeline(), "check-1")
    assert {"--name=check-1", "--env=ITEM", "--no-cache", "--input=table=prepare.table"} <= {
        *options
    }


def test_outputs_of_a_fan_out_become_one_input() -> None:
    options = command_of(pipeline(), "report")
    assert [option for option in options if option.startswith("--input=")] == [
        "--input=shares=[check-0.share,check-1.share]",
        "--input=export=train.export",
        "--input=accuracy=train.accuracy",
    ]
    assert "--image" not in " ".join(options)


def test_inputs_of_the_training_become_hyperparameters() -> None:
    made = pipeline(inputs={"epochs": "prepare.rows"}, hyperparameters={"model": "digits-net"})
    command = command_of(made, "train")
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
            "step prepare has no output 'row': its outputs are rows, table",
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
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any], text: str) -> None:
    values = {"steps": PIPELINE, "hyperparameters": {"model": "digits-net"}, **changes}
    found = problems_of(job("volcano", **values))
    assert any(text in sentence for sentence in found), found


def test_other_claims_stay_read_only_in_a_step_that_writes_datasets() -> None:
    volumes = {"scores": {"claim": "checkpoints", "path": "/scores", "read_only": True}}
    described = job("volcano", steps=STEPS, volumes=volumes)
    made = {each["metadata"]["name"]: each for each in objects(described)}
    (found,) = made["0123abcd-prepare"]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    read_only = {mount["mountPath"]: "readOnly" in mount for mount in found["volumeMounts"]}
    assert (read_only["/data"], read_only["/scores"]) == (False, True)
