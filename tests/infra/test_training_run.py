import re
from dataclasses import replace
from typing import Any

import pulumi
import pytest
from pulumi.runtime.stack import ResourceRegistrationFailed

from infra.component import existing
from infra.manifests import Manifest
from infra.outputs import RunOutput
from infra.pods import GpuNodes
from infra.settings.training.network import NcclSettings
from infra.settings.training.steps import StepSettings
from infra.settings.volumes import ReferenceSettings, VolumeSettings
from infra.training_job import Run, ignored_paths, reject_recorded, started_runs
from infra.training_run import TrainingJobArgs, manifests, run_name
from kube.kinds import RESOURCES
from tests.infra.examples import TRAINING_IMAGE, settings

JOB = "training.jobs.digits"


def args(path: str | None = None, value: Any = None) -> TrainingJobArgs:
    stack = settings(path, value)
    return TrainingJobArgs(
        key="digits",
        job=stack.training.jobs["digits"],
        namespace="ml",
        image=TRAINING_IMAGE,
        image_identity=TRAINING_IMAGE,
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        claims={"checkpoints": "ckpt", "datasets": "data"},
    )


def pod(job: TrainingJobArgs) -> Manifest:
    spec: Manifest = manifests(job, "digits-1", "image")[-1]["spec"]["tasks"][0]["template"]["spec"]
    return spec


def test_run_name_consists_of_key_and_hash() -> None:
    assert re.fullmatch(r"digits-[0-9a-f]{8}", run_name(args()))


def test_same_specification_yields_the_same_run_name() -> None:
    assert run_name(args()) == run_name(args())


def test_run_name_does_not_depend_on_the_digest_of_a_build() -> None:
    assert run_name(replace(args(), image="a@sha256:1")) == run_name(replace(args(), image="b"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{JOB}.hyperparameters.epochs", 4),
        (f"{JOB}.nodes", 1),
        (f"{JOB}.memory", "65Gi"),
        (f"{JOB}.env", {"NCCL_DEBUG": "INFO"}),
        (f"{JOB}.kind", "indexed"),
        (f"{JOB}.attempt", 2),
    ],
)
def test_changed_specification_is_a_new_run(path: str, value: object) -> None:
    assert run_name(args(path, value)) != run_name(args())


def test_changed_training_code_is_a_new_run() -> None:
    assert run_name(replace(args(), image_identity="sources:2")) != run_name(args())


def test_shared_settings_do_not_change_the_run_name() -> None:
    shared = GpuNodes(resource="nvidia.com/gpu", tolerations=[{"key": "spot"}], runtime_class="x")
    assert run_name(replace(args(), gpu_nodes=shared, namespace="other")) == run_name(args())


def test_new_default_does_not_change_the_run_name() -> None:
    job = args().job
    changed = job.model_copy()
    object.__setattr__(changed, "retries", 7)
    assert "retries" not in job.model_fields_set
    assert run_name(replace(args(), job=changed)) == run_name(args())


def test_pinned_run_name_is_kept_after_edits() -> None:
    job = args(f"{JOB}.memory", "65Gi").job.model_copy(update={"run": "digits-0a1b2c3d"})
    assert run_name(replace(args(), job=job)) == "digits-0a1b2c3d"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{JOB}.on_change", "replace"),
        ("gpu.tolerations", [{"key": "spot"}]),
        ("tenancy.quota.gpus", 64),
        ("inference.services.digits.cpu", "2"),
    ],
)
def test_settings_outside_the_run_do_not_change_the_run_name(path: str, value: object) -> None:
    assert run_name(args(path, value)) == run_name(args())


def test_program_writes_to_the_run_directory() -> None:
    command = pod(args())["containers"][0]["command"]
    assert command[-5:] == [
        "training",
        "--model=digits-net",
        "--dataset=digits",
        "--run-dir=/checkpoints/digits-1",
        "--epochs=3",
    ]


def test_only_the_training_program_gets_the_node_name() -> None:
    def names(job: TrainingJobArgs) -> dict[str, Manifest]:
        return {each["name"]: each for each in pod(job)["containers"][0]["env"]}

    source = names(args())["NODE_NAME"]["valueFrom"]
    assert source == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    custom_job = args().job.model_copy(update={"command": ["./run"], "hyperparameters": None})
    assert "NODE_NAME" not in names(replace(args(), job=custom_job))


def test_torchrun_in_a_custom_command_waits_for_the_grace_period() -> None:
    """By default, torchrun kills processes after 30 seconds, even while they save."""
    command = {"hyperparameters": None, "command": ["torchrun", "train.py"], "grace_seconds": 300}
    steps = {"evaluate": StepSettings(command=["torchrun", "evaluate.py"], after=["train"])}
    job = args().job.model_copy(update={**command, "steps": steps})
    containers = [
        task["template"]["spec"]["containers"][0]
        for manifest in manifests(replace(args(), job=job), "digits-1", "image")
        for task in manifest["spec"].get("tasks", ())
    ]
    assert {container["command"][1] for container in containers} == {"train.py", "evaluate.py"}
    for container in containers:
        env = {variable["name"]: variable["value"] for variable in container["env"]}
        assert env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "300"
    # The platform's launcher waits until the end of the pod.
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in str(pod(args()))


def test_a_program_with_metrics_declares_its_port() -> None:
    def template(job: TrainingJobArgs) -> Manifest:
        task: Manifest = manifests(job, "digits-1", "image")[-1]["spec"]["tasks"][0]
        found: Manifest = task["template"]
        return found

    found = template(args(f"{JOB}.hyperparameters.metrics_port", 9400))
    [port] = found["spec"]["containers"][0]["ports"]
    assert (port["name"], port["containerPort"]) == ("metrics", 9400)
    assert found["metadata"]["annotations"]["prometheus.io/port"] == "9400"
    without_metrics = template(args())
    assert "ports" not in without_metrics["spec"]["containers"][0]
    assert "prometheus.io/port" not in without_metrics["metadata"].get("annotations", {})


def test_claims_are_mounted_at_the_expected_paths() -> None:
    spec = pod(args())
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    paths = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert claims == {"checkpoints": "ckpt", "datasets": "data"}
    assert (paths["checkpoints"], paths["datasets"]) == ("/checkpoints", "/data")


def test_datasets_claim_is_optional() -> None:
    names = [volume["name"] for volume in pod(args(f"{JOB}.datasets"))["volumes"]]
    assert names == ["shm", "tmp", "checkpoints"]


def test_pods_of_a_gang_are_spread_over_nodes_by_default() -> None:
    assert "topologySpreadConstraints" in pod(args())
    assert "topologySpreadConstraints" not in pod(args(f"{JOB}.spread", False))


def test_job_can_request_another_gpu_resource() -> None:
    limits = pod(args(f"{JOB}.gpu_resource", "amd.com/gpu"))["containers"][0]["resources"]["limits"]
    assert limits["amd.com/gpu"] == "4"
    assert "nvidia.com/gpu" not in limits


def test_attempt_can_have_a_deadline() -> None:
    assert pod(args(f"{JOB}.attempt_deadline_seconds", 60))["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize(
    ("kind", "name"), [("volcano", "digits-28fa258c"), ("indexed", "digits-91ea4b7d")]
)
def test_new_settings_do_not_rename_existing_runs(kind: str, name: str) -> None:
    # A change to these names would restart all runs of all users.
    assert run_name(args(f"{JOB}.kind", kind)) == name


@pytest.mark.parametrize("kind", ["indexed", "pytorch", "trainjob"])
def test_suspended_run_keeps_its_name(kind: str) -> None:
    running = args(f"{JOB}.kind", kind)
    suspended = replace(running, job=running.job.model_copy(update={"state": "suspended"}))
    assert run_name(suspended) == run_name(running)
    assert manifests(suspended, "r", "image") != manifests(running, "r", "image")


def test_references_and_network_settings_become_container_variables() -> None:
    job = args().job.model_copy(
        update={
            "env": {"MODE": "fast"},
            "env_from": {"HUB": ReferenceSettings(secret="hub", key="token")},
            "nccl": NcclSettings(network="tcp", interface="eth1"),
        }
    )
    env = {v["name"]: v for v in pod(replace(args(), job=job))["containers"][0]["env"]}
    assert env["HUB"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["MODE"]["value"] == "fast"
    assert env["NCCL_NET"]["value"] == "Socket"
    assert env["NCCL_SOCKET_IFNAME"]["value"] == env["GLOO_SOCKET_IFNAME"]["value"] == "eth1"


def test_nodes_are_selected_by_gpu_product_and_count() -> None:
    job = args().job.model_copy(
        update={"gpu_product": "NVIDIA-L4", "node_gpus": 8, "node_selector": {"pool": "a"}}
    )
    assert pod(replace(args(), job=job))["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-L4",
        "nvidia.com/gpu.count": "8",
        "pool": "a",
    }


def test_additional_volumes_are_mounted_from_their_sources() -> None:
    volumes = {
        "more": VolumeSettings(path="/more", claim="other", read_only=True),
        "code": VolumeSettings(path="/code", config_map="code"),
        "keys": VolumeSettings(path="/keys", secret="keys"),
        "cache": VolumeSettings(path="/cache", scratch="10Gi"),
    }
    job = args().job.model_copy(update={"volumes": volumes})
    claims = {**args().claims, "other": "more"}
    spec = pod(replace(args(), job=job, claims=claims))
    sources = {volume.pop("name"): volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert sources["more"] == {"persistentVolumeClaim": {"claimName": "more", "readOnly": True}}
    assert sources["code"] == {"configMap": {"name": "code"}}
    assert sources["keys"] == {"secret": {"secretName": "keys", "defaultMode": 0o440}}
    assert sources["cache"] == {"emptyDir": {"sizeLimit": "10Gi"}}
    assert {name for name in volumes if "readOnly" not in mounts[name]} == {"cache"}


def test_fixed_run_name_with_another_kind_is_another_object() -> None:
    """A hook rejects the second object, which would use the run directory of the first."""
    job = args().job.model_copy(update={"run": "digits-final"})
    found = [
        manifests(replace(args(), job=job.model_copy(update=changes)), "digits-final", "image")[-1]
        for changes in ({}, {"kind": "indexed"}, {"steps": {"a": StepSettings(command=["./a"])}})
    ]
    assert {manifest["metadata"]["name"] for manifest in found} == {"digits-final"}
    kinds = {(manifest["apiVersion"], manifest["kind"]) for manifest in found}
    assert len(kinds) == len(found)
    assert kinds <= {(resource.api_version, resource.kind) for resource in RESOURCES}


async def test_a_recorded_run_is_not_created_again() -> None:
    reject = reject_recorded(pulumi.Output.from_input(["digits-0a1b2c3d"]))

    def created(run: str) -> pulumi.ResourceHookArgs:
        inputs = {"metadata": {"name": run}}
        return pulumi.ResourceHookArgs("urn", "", f"{run}-job", "type", new_inputs=inputs)

    await reject(created("digits-4e5f6a7b"))
    # A targeted destroy removes a job from the state, but retains it in the cluster.
    message = r"digits-0a1b2c3d would start.* or the state.*sets `run`.*adopt .*`recreate: true`"
    with pytest.raises(pulumi.RunError, match=message):
        await reject(created("digits-0a1b2c3d"))


async def test_outputs_contain_no_unknown_values_after_an_update_that_skips_resources() -> None:
    """The images and runs that an update with `--target` does not create are unknown to it."""

    async def resolved(value: Any) -> Any:
        return value

    unknown: pulumi.Output[str] = pulumi.Output(set(), resolved(None), resolved(False))
    known = pulumi.Output.from_input("a@sha256:1")
    assert await existing({"a": known, "b": unknown}).future() == {"a": "a@sha256:1"}
    summary: RunOutput = {
        "name": "a",
        "kind": "volcano",
        "namespace": "ml",
        "queue": "research",
        "nodes": 1,
        "gpusPerNode": 1,
    }
    started = {"old-1": unknown, "new-2": unknown, "created-3": known}
    runs = [Run(name=name, summary=summary, started=each) for name, each in started.items()]
    names = started_runs(runs, pulumi.Output.from_input(["old-1", "removed-4"]))
    assert await pulumi.Output.from_input(names).future() == ["old-1", "created-3"]


async def test_outputs_omit_resources_that_failed_in_an_update_with_continue_on_error() -> None:
    async def failed() -> str:
        raise ResourceRegistrationFailed

    outputs = {"a": pulumi.Output.from_input("a@sha256:1"), "b": pulumi.Output.from_input(failed())}
    assert await existing(outputs).future() == {"a": "a@sha256:1"}


def test_update_can_change_only_the_suspension_of_an_existing_run() -> None:
    spec = {"runPolicy": {"suspend": True, "backoffLimit": 3}, "suspend": True, "template": {}}
    ignored = ignored_paths({"spec": spec}, suspendable=True)
    assert ignored == [
        "spec.runPolicy.backoffLimit",
        "spec.template.spec",
        "spec.template.metadata.annotations",
        "spec.template.metadata.labels[*]",
    ]
    assert ignored_paths({"spec": spec}, suspendable=False) == ["spec"]


def test_autoscalers_do_not_remove_the_nodes_of_a_gang() -> None:
    template = manifests(args(), "digits-1", "image")[-1]["spec"]["tasks"][0]["template"]
    annotations = template["metadata"]["annotations"]
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_pods_have_the_labels_of_the_job() -> None:
    job = args(f"{JOB}.labels", {"azure.workload.identity/use": "true"})
    labels = manifests(job, "digits-1", "image")[-1]["spec"]["tasks"][0]["template"]["metadata"]
    assert labels["labels"]["azure.workload.identity/use"] == "true"
    assert labels["labels"]["gpu-platform.dev/run"] == "digits-1"
