"""The stack under the real engine and provider: manifests, outputs and errors."""

import re
from typing import Any

import pytest

from infra.outputs import PLATFORM_OUTPUTS
from tests.engine.conftest import MakeStack, Manifest, Stack


@pytest.fixture(scope="module")
def stack(engine: MakeStack) -> Stack:
    """The simulated stack, rendered once."""
    made = engine("simulated")
    outcome = made.up()
    assert outcome.status == 0, outcome.text
    return made


def of_kind(stack: Stack, kind: str, name: str) -> Manifest:
    (found,) = [
        manifest
        for manifest in stack.manifests()
        if manifest["kind"] == kind and manifest["metadata"]["name"].startswith(name)
    ]
    return found


def job(config: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = config["gpu-platform:training"]["jobs"][name]
    return found


def test_every_object_of_the_stack_is_rendered(stack: Stack) -> None:
    kinds = sorted({manifest["kind"] for manifest in stack.manifests()})
    assert kinds == [
        "Deployment",
        "Job",
        "LimitRange",
        "Namespace",
        "NetworkPolicy",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "PodGroup",
        "PriorityClass",
        "Queue",
        "ResourceQuota",
        "Service",
        "ServiceAccount",
    ]


def test_other_stacks_can_read_the_outputs(stack: Stack) -> None:
    outputs = stack.outputs()
    run = outputs["runs"]["digits"]["name"]
    assert re.fullmatch(r"digits-[0-9a-f]{8}", run)
    assert outputs["namespace"] == "ml-simulated"
    assert outputs["queues"] == ["research"]
    assert outputs["claims"] == {"checkpoints": "checkpoints"}
    assert outputs["runs"]["digits"] == {
        "name": run,
        "kind": "volcano",
        "namespace": "ml-simulated",
        "queue": "research",
        "nodes": 2,
        "gpusPerNode": 8,
    }
    assert outputs["inference"]["digits"] == {
        "url": "http://digits.ml-simulated.svc.cluster.local:8080",
        "service": "digits",
        "namespace": "ml-simulated",
        "model": "digits",
        "runtime": "torch",
        "run": run,
    }
    assert set(outputs["images"]) == {"training", "inference"}
    assert all("@sha256:" in reference for reference in outputs["images"].values())
    assert outputs["gpuNodes"] == {
        "resource": "nvidia.com/gpu",
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {
                "key": "kwok.x-k8s.io/node",
                "operator": "Equal",
                "value": "fake",
                "effect": "NoSchedule",
            },
        ],
    }


def test_outputs_have_the_documented_types(stack: Stack) -> None:
    outputs = stack.outputs()
    assert PLATFORM_OUTPUTS.validate_python(outputs) == outputs


def test_both_job_kinds_are_rendered_as_they_were_built(stack: Stack) -> None:
    volcano = of_kind(stack, "Job", "digits-")
    indexed = of_kind(stack, "Job", "sweep-")
    assert volcano["apiVersion"] == "batch.volcano.sh/v1alpha1"
    assert volcano["spec"]["minAvailable"] == 2
    assert [task["replicas"] for task in volcano["spec"]["tasks"]] == [1, 1]
    assert indexed["apiVersion"] == "batch/v1"
    assert indexed["spec"]["completionMode"] == "Indexed"
    assert of_kind(stack, "PodGroup", "sweep-")["spec"]["minMember"] == 2
    for manifest in (volcano, indexed):
        assert manifest["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"


def test_service_reads_the_export_from_the_directory_of_the_run(stack: Stack) -> None:
    task = of_kind(stack, "Job", "digits-")["spec"]["tasks"][0]
    command = task["template"]["spec"]["containers"][0]["command"]
    pod = of_kind(stack, "Deployment", "digits")["spec"]["template"]["spec"]
    env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    run = stack.outputs()["runs"]["digits"]["name"]
    assert f"--run-dir=/checkpoints/{run}" in command
    assert env["INFERENCE_MODEL_PATH"] == f"/models/{run}/export"


def test_a_second_update_changes_nothing(stack: Stack) -> None:
    outcome = stack.up("--expect-no-changes")
    assert outcome.status == 0, outcome.text


def test_an_edited_job_starts_one_new_run_and_keeps_the_old(engine: MakeStack) -> None:
    stack = engine("simulated")
    assert stack.up().status == 0
    before = stack.outputs()["runs"]

    def more_epochs(config: dict[str, Any]) -> None:
        job(config, "digits")["hyperparameters"]["epochs"] = 21

    stack.edit(more_epochs)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    after = stack.outputs()["runs"]
    assert after["digits"]["name"] != before["digits"]["name"]
    assert after["sweep"] == before["sweep"]
    names = {
        manifest["metadata"]["name"] for manifest in stack.manifests() if manifest["kind"] == "Job"
    }
    # The engine removes the old run from its state, but keeps its object.
    assert names == {before["digits"]["name"], after["digits"]["name"], after["sweep"]["name"]}


def test_outputs_after_a_targeted_update_omit_what_it_skips(engine: MakeStack) -> None:
    stack = engine("simulated", None)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    started = stack.outputs()["startedRuns"]

    def add(config: dict[str, Any]) -> None:
        jobs = config["gpu-platform:training"]["jobs"]
        jobs.update(first=jobs["digits"], second=jobs["digits"])

    stack.edit(add)
    outcome = stack.up("--target=**::first-*")
    assert outcome.status == 0, outcome.text
    outputs = stack.outputs()
    assert outputs["startedRuns"] == [*started[:1], outputs["runs"]["first"]["name"], *started[1:]]


def test_rendering_reports_helm_releases_that_are_not_rendered(engine: MakeStack) -> None:
    def install(config: dict[str, Any]) -> None:
        config["gpu-platform:volcano"]["install"] = True

    stack = engine("simulated", install)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    assert "release of chart volcano 1.15.1 is not rendered" in outcome.text
    assert "Queue" in {manifest["kind"] for manifest in stack.manifests()}


def pinned_images(config: dict[str, Any]) -> None:
    for key in ("training", "inference", "recorder"):
        reference = f"registry.example.com/{key}@sha256:{'0' * 64}"
        config["gpu-platform:images"]["workloads"][key] = {"reference": reference}


def test_dev_stack_renders_its_device_plugin_and_volumes(engine: MakeStack) -> None:
    stack = engine("dev", pinned_images)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    plugin = of_kind(stack, "DaemonSet", "nvidia-device-plugin")
    pod = plugin["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert of_kind(stack, "ConfigMap", "nvidia-device-plugin")["data"]["config.yaml"]
    recorder = of_kind(stack, "Deployment", "failure-recorder")["spec"]["template"]["spec"]
    assert recorder["serviceAccountName"] == "failure-recorder"
    for name in ("checkpoints", "datasets"):
        claim = of_kind(stack, "PersistentVolumeClaim", name)
        volume = of_kind(stack, "PersistentVolume", f"shared-{name}")
        assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
        assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
        assert volume["spec"]["claimRef"]["namespace"] == claim["metadata"]["namespace"]
        assert volume["spec"]["local"]["path"] == f"/var/lib/shared-volumes/{name}"


def no_nodes(config: dict[str, Any]) -> None:
    job(config, "digits")["nodes"] = 0


def misspelled_key(config: dict[str, Any]) -> None:
    job(config, "digits")["gpu_per_node"] = 8


def unknown_section(config: dict[str, Any]) -> None:
    config["gpu-platform:traning"] = {}


def large_shm(config: dict[str, Any]) -> None:
    job(config, "digits")["shm"] = "1Ti"


def missing_password(config: dict[str, Any]) -> None:
    config["gpu-platform:images"] |= {"registry": "registry.example.com", "username": "robot"}


def invalid_hyperparameter(config: dict[str, Any]) -> None:
    job(config, "digits")["hyperparameters"]["learning_rate"] = -1


def string_instead_of_mapping(config: dict[str, Any]) -> None:
    config["gpu-platform:tenancy"] = "ml"


MISTAKES = {
    "single settings": {
        no_nodes: "gpu-platform:training.jobs.digits.nodes is 0, but must be at least 1.",
        misspelled_key: "gpu_per_node is not a known key: did you mean 'gpus_per_node'?",
        unknown_section: "gpu-platform:traning is not a known key: did you mean 'training'?",
        invalid_hyperparameter: "hyperparameters.learning_rate is -1, but must be greater than 0",
        string_instead_of_mapping: 'gpu-platform:tenancy is "ml", but must be a mapping',
    },
    "combinations of settings": {
        large_shm: "gpu-platform:training.jobs.digits has shm 1Ti, but memory 128Gi",
        missing_password: "gpu-platform:registry_password is missing",
    },
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_invalid_configuration_is_rejected_before_anything_is_created(
    engine: MakeStack, kind: str
) -> None:
    def edit(config: dict[str, Any]) -> None:
        for mistake in MISTAKES[kind]:
            mistake(config)

    stack = engine("simulated", edit)
    outcome = stack.up()
    assert outcome.status != 0
    for sentence in MISTAKES[kind].values():
        assert sentence in outcome.text
    assert "Traceback" not in outcome.text
    assert set(stack.resources()) <= {"pulumi:pulumi:Stack"}
    assert not stack.rendered.exists()
