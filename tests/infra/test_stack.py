"""The complete program: dependencies, retained resources and images."""

import base64
import json
import os
from typing import Any

import pulumi
import pytest

from infra.configuration import load_settings
from kube.names import STACK_ANNOTATION
from tests.infra.conftest import Plan, Provision
from tests.infra.examples import TRAINING_IMAGE, changed, good, stacks

VOLCANO_JOB = "kubernetes:batch.volcano.sh/v1alpha1:Job"
RELEASE = "kubernetes:helm.sh/v3:Release"
SECRET = "kubernetes:core/v1:Secret"
IMAGE = "docker:index/image:Image"


def image_of(pod: dict[str, Any]) -> object:
    return pod["spec"]["containers"][0]["image"]


def test_the_stack_has_a_component_for_each_concern(provision: Provision) -> None:
    plan = provision(good())
    # The stack itself is registered only once per process, by the first test.
    components = {
        name
        for name, request in plan.resources.items()
        if not request.custom and request.type != "pulumi:pulumi:Stack"
    }
    assert components == {
        "gpu",
        "volcano",
        "tenancy",
        "storage",
        "image-training",
        "image-inference",
        "training",
        "inference-digits",
    }


def test_every_object_is_created_in_the_configured_cluster(provision: Provision) -> None:
    plan = provision(good())
    assert plan.inputs("cluster")["context"] == "staging"
    for name, request in plan.resources.items():
        if request.type.startswith("kubernetes:"):
            assert "pulumi:providers:kubernetes::cluster" in request.provider, name


def test_run_is_retained_and_ignores_changes_by_default(provision: Provision) -> None:
    plan = provision(good())
    (name,) = plan.names(VOLCANO_JOB)
    assert plan[name].retainOnDelete
    assert list(plan[name].ignoreChanges) == ["spec"]


def test_run_is_not_retained_with_on_change_replace(provision: Provision) -> None:
    plan = provision(changed("training.jobs.digits.on_change", "replace"))
    (name,) = plan.names(VOLCANO_JOB)
    assert not plan[name].retainOnDelete


def test_all_jobs_of_a_stack_are_children_of_one_component(provision: Provision) -> None:
    values = good()
    values["training"]["jobs"]["again"] = values["training"]["jobs"]["digits"]
    plan = provision(values)
    jobs = plan.names(VOLCANO_JOB)
    assert len(jobs) == 2
    (parent,) = {plan[name].parent for name in jobs}
    assert parent.endswith("gpu-platform:index:TrainingJobs::training")


def test_edited_job_becomes_a_new_resource(provision: Provision) -> None:
    before = provision(good()).names(VOLCANO_JOB)
    after = provision(changed("training.jobs.digits.hyperparameters.epochs", 4)).names(VOLCANO_JOB)
    assert before != after


def test_run_depends_on_its_claims_queue_and_gpu_plugin(provision: Provision) -> None:
    plan = provision(good())
    (name,) = plan.names(VOLCANO_JOB)
    assert {
        "storage-claim-checkpoints",
        "storage-claim-datasets",
        "volcano-queue-research",
        "gpu-daemonset",
    } <= plan.dependencies(name)


def test_service_depends_on_the_claims_that_it_mounts(provision: Provision) -> None:
    plan = provision(good())
    assert "storage-claim-checkpoints" in plan.dependencies("inference-digits-deployment")
    assert "tenancy-namespace" in plan.dependencies("storage-claim-checkpoints")


def test_queues_and_priority_classes_depend_on_the_release(provision: Provision) -> None:
    plan = provision(good())
    assert plan.dependencies("volcano-queue-research") == {"volcano-release"}
    assert plan.dependencies("volcano-priority-training") == {"volcano-release"}


def test_release_has_version_repository_and_values(provision: Provision) -> None:
    values = changed("volcano.values", {"custom": {"scheduler_replicas": 2}})
    found = provision(values).inputs("volcano-release")
    assert found["version"] == "1.15.1"
    assert found["repositoryOpts"] == {"repo": "https://volcano-sh.github.io/helm-charts"}
    custom = found["values"]["custom"]
    assert custom["scheduler_replicas"] == 2
    assert {"scheduler_config_override", "controller_kube_api_qps"} <= custom.keys()
    assert found["namespace"] == "volcano-system"


def test_chart_in_an_oci_registry_is_referenced_by_its_url(provision: Provision) -> None:
    values = changed("volcano.repository", "oci://registry.example.com/charts/")
    found = provision(values).inputs("volcano-release")
    assert found["chart"] == "oci://registry.example.com/charts/volcano"
    assert "repositoryOpts" not in found


def test_existing_volcano_gets_only_queues_and_priority_classes(provision: Provision) -> None:
    plan = provision(changed("volcano.install", False))
    assert plan.names(RELEASE) == []
    assert "volcano-namespace" not in plan.resources
    assert "volcano-queue-research" in plan.resources
    assert "volcano-priority-training" in plan.resources


@pytest.mark.parametrize("labels", [{}, {"grafana_dashboard": "1", "team": "ml"}])
def test_dashboards_can_have_any_labels_for_an_existing_grafana(
    provision: Provision, labels: dict[str, str]
) -> None:
    grafana = {"dashboards": True, "labels": labels}
    plan = provision(changed("monitoring", {"prometheus": "plain", "grafana": grafana}))
    assert any("dashboard" in name for name in plan.resources)


def test_manifests_are_rendered_without_the_release(provision: Provision) -> None:
    plan = provision(changed("cluster", {"render_to": "rendered"}))
    assert plan.names(RELEASE) == []
    assert plan.inputs("cluster")["renderYamlToDirectory"] == "rendered"
    assert "context" not in plan.inputs("cluster")


def test_pinned_image_is_used_without_a_build(provision: Provision) -> None:
    plan = provision(good())
    (name,) = plan.names(VOLCANO_JOB)
    assert plan.names(IMAGE) == []
    (task, *_) = plan.inputs(name)["spec"]["tasks"]
    assert image_of(task["template"]) == TRAINING_IMAGE


def built_images() -> dict[str, Any]:
    build = {
        "dockerfile": "tests/infra/conftest.py",
        "base_image": "registry.example.com/pytorch:2.15",
        "sources": ["training"],
        "args": {"EXTRA": "1"},
        "target": "mpi",
    }
    values = changed("images.workloads.training", {"build": build})
    values["images"] |= {"registry": "registry.example.com", "username": "robot"}
    return {**values, "registry_password": "hunter2"}


def test_a_built_image_is_pushed_and_used_by_digest(provision: Provision) -> None:
    plan = provision(built_images(), ("registry_password",))
    found = plan.inputs("image-training-build")
    repository, _, tag = found["imageName"].rpartition(":")
    assert repository == "registry.example.com/gpu-platform/training"
    assert len(tag) == 16
    assert found["build"]["target"] == "mpi"
    # An absolute path would differ between checkouts and cause a change.
    assert found["build"]["context"] == "."
    assert found["build"]["dockerfile"] == "tests/infra/conftest.py"
    assert found["build"]["args"] == {
        "BASE_IMAGE": "registry.example.com/pytorch:2.15",
        "EXTRA": "1",
    }
    (name,) = plan.names(VOLCANO_JOB)
    (task, *_) = plan.inputs(name)["spec"]["tasks"]
    assert image_of(task["template"]) == f"{repository}@sha256:{'5' * 64}"


def test_registry_password_is_a_secret_for_push_and_pull(provision: Provision) -> None:
    plan = provision(built_images(), ("registry_password",))
    login = {"server": "registry.example.com", "username": "robot", "password": "hunter2"}
    assert plan.inputs("image-training-build")["registry"] == login
    document = json.loads(plan.inputs("tenancy-registry")["stringData"][".dockerconfigjson"])
    entry = document["auths"]["registry.example.com"]
    assert base64.b64decode(entry["auth"]) == b"robot:hunter2"
    for name in ("image-training-build", "tenancy-registry"):
        assert secrets_only(plan[name].object, "hunter2"), name


@pytest.mark.parametrize("mirrored", [True, False])
def test_system_pods_use_the_login_only_for_mirrored_images(
    provision: Provision, mirrored: bool
) -> None:
    host = "registry.example.com" if mirrored else "elsewhere.example.com"
    values = built_images()
    values["gpu"] = {"image": f"{host}/nvidia/k8s-device-plugin:v0.20.0"}
    values["volcano"]["values"] = {"basic": {"image_registry": f"{host}/mirror"}}
    values["monitoring"] = {
        "prometheus": "operator",
        "dcgm_exporter": {"image": f"{host}/nvidia/dcgm-exporter:4.6.0"},
        "kube_prometheus_stack": {"install": True, "values": {"global": {"imageRegistry": host}}},
    }
    plan = provision(values, ("registry_password",))
    secrets = {plan.inputs(name)["metadata"]["namespace"] for name in plan.names(SECRET)}
    system = {"gpu-system", "gpu-metrics", "volcano-system", "monitoring"} if mirrored else set()
    assert secrets == {"ml", *system}
    pulls = [{"name": "registry"}] if mirrored else None
    for daemon_set in ("gpu-daemonset", "monitoring-daemonset-dcgm-exporter"):
        spec = plan.inputs(daemon_set)["spec"]["template"]["spec"]
        assert spec.get("imagePullSecrets") == pulls
    chart = plan.inputs("monitoring-release")["values"]
    assert chart["global"].get("imagePullSecrets") == pulls
    basic = plan.inputs("volcano-release")["values"]["basic"]
    assert basic.get("image_pull_secret") == ("registry" if mirrored else None)


def test_every_pod_uses_the_login_for_images_in_the_registry(provision: Provision) -> None:
    host = "registry.example.com"
    values = json.loads(json.dumps(stacks()[0]).replace("nvcr.io", host))
    values["images"]["username"] = "robot"
    plan = provision({**values, "registry_password": "hunter2"}, ("registry_password",))
    objects = [plan.inputs(name) for name in plan.resources if is_object(plan, name)]
    found = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each
        for each in objects
    }
    pod_count = 0
    for (kind, namespace, name), each in found.items():
        for pod in pods(each):
            if not any(image.startswith(f"{host}/") for image in images_of(pod)):
                continue
            pod_count += 1
            account = found.get(("ServiceAccount", namespace, pod.get("serviceAccountName")), {})
            pull_secrets = [*pod.get("imagePullSecrets", ()), *account.get("imagePullSecrets", ())]
            assert pull_secrets, (kind, name)
            assert all(("Secret", namespace, secret["name"]) in found for secret in pull_secrets), (
                kind,
                name,
            )
    assert pod_count > 10


def pods(value: Any) -> list[dict[str, Any]]:
    """Return the pod specifications in an object."""
    if isinstance(value, list):
        return [found for item in value for found in pods(item)]
    if not isinstance(value, dict):
        return []
    current = [value] if "containers" in value else []
    return current + [found for item in value.values() for found in pods(item)]


def images_of(pod: dict[str, Any]) -> list[str]:
    """Return the images of a pod's containers and volumes."""
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    volumes = [each["image"]["reference"] for each in pod.get("volumes", ()) if "image" in each]
    return [*(each["image"] for each in containers), *volumes]


def test_gpu_operator_uses_the_login_for_mirrored_images(provision: Provision) -> None:
    host = "registry.example.com"
    values = built_images()
    values["gpu"] = {
        "provider": "gpu-operator",
        "operator": {
            "values": {
                "driver": {"repository": f"{host}/nvidia"},
                "gfd": {"repository": f"{host}/nvidia", "imagePullSecrets": ["other"]},
                "toolkit": {"repository": "elsewhere.example.com/nvidia"},
                "node-feature-discovery": {"image": {"repository": f"{host}/nfd"}},
            }
        },
    }
    plan = provision(values, ("registry_password",))
    assert plan.inputs("gpu-operator-registry")["metadata"]["namespace"] == "gpu-operator"
    assert "gpu-operator-registry" in plan.dependencies("gpu-operator-release")
    chart = plan.inputs("gpu-operator-release")["values"]
    assert chart["driver"]["imagePullSecrets"] == ["registry"]
    assert chart["driver"]["enabled"] is True
    assert chart["gfd"]["imagePullSecrets"] == ["other"]
    assert "imagePullSecrets" not in chart["toolkit"]
    # The Node Feature Discovery chart expects objects instead of strings.
    assert chart["node-feature-discovery"]["imagePullSecrets"] == [{"name": "registry"}]
    values["gpu"]["operator"]["values"] = {}
    plain = provision(values, ("registry_password",))
    assert "gpu-operator-registry" not in plain.resources


def test_cluster_labels_and_annotations_are_on_every_object_and_pod(provision: Provision) -> None:
    cluster = {"context": "staging", "labels": {"cost-center": "ml"}, "annotations": {"owner": "a"}}
    values = changed("cluster", cluster)
    values["tenancy"]["admission"] = "audit"
    plan = provision(values)
    plain = provision({**values, "cluster": {"context": "staging"}})
    objects = [name for name in plan.resources if is_object(plan, name)]
    assert set(plan.resources) == set(plain.resources)
    assert len(objects) > 20
    for name in objects:
        pods = pod_metadata(plan.inputs(name))
        assert len(pods) == len(pod_metadata(plain.inputs(name)))
        for metadata in [plan.inputs(name)["metadata"], *pods]:
            assert metadata["labels"]["cost-center"] == "ml", name
            assert metadata["annotations"]["owner"] == "a", name
    workloads = {
        plan[name].type.rpartition(":")[2] for name in objects if pod_metadata(plan.inputs(name))
    }
    assert workloads == {"DaemonSet", "Job", "Deployment"}


def is_object(plan: Plan, name: str) -> bool:
    kind = plan[name].type
    return kind.startswith("kubernetes:") and kind != RELEASE


def pod_metadata(value: Any) -> list[dict[str, Any]]:
    """Return the metadata of the pod templates in an object."""
    if isinstance(value, list):
        return [found for item in value for found in pod_metadata(item)]
    if not isinstance(value, dict):
        return []
    current = [value.get("metadata", {})] if "containers" in (value.get("spec") or ()) else []
    return current + [found for item in value.values() for found in pod_metadata(item)]


def secrets_only(properties: Any, secret: str) -> bool:
    """Return whether a text occurs only inside values that are marked as secret."""
    signature = "4dabf18193072939515e22adb298388d"
    encoded = base64.b64encode(f"robot:{secret}".encode()).decode()

    def leaks(value: Any) -> bool:
        kind = value.WhichOneof("kind")
        if kind == "struct_value":
            fields = value.struct_value.fields
            return signature not in fields and any(leaks(item) for item in fields.values())
        if kind == "list_value":
            return any(leaks(item) for item in value.list_value.values)
        return kind == "string_value" and (
            secret in value.string_value or encoded in value.string_value
        )

    return not any(leaks(value) for value in properties.fields.values())


def test_cluster_wide_objects_and_quotas_name_their_stack(provision: Provision) -> None:
    plan = provision(good())
    for name in (
        "volcano-queue-research",
        "volcano-priority-training",
        "storage-class-shared",
        "tenancy-limitrange-containers",
        *plan.names("kubernetes:core/v1:ResourceQuota"),
    ):
        annotations = plan.inputs(name)["metadata"]["annotations"]
        assert annotations[STACK_ANNOTATION] == f"{pulumi.get_project()}/{pulumi.get_stack()}"
    # Updates adopt existing namespaces, which survive their stack. Their LimitRange and
    # ResourceQuota reject a second stack.
    for name in plan.names("kubernetes:core/v1:Namespace"):
        assert STACK_ANNOTATION not in plan.inputs(name)["metadata"].get("annotations", {})


def test_claims_are_retained_and_can_be_protected(provision: Provision) -> None:
    plan = provision(changed("storage.claims.checkpoints.protect", True))
    assert plan["storage-claim-checkpoints"].retainOnDelete
    assert plan["storage-claim-checkpoints"].protect
    assert not plan["storage-claim-datasets"].protect


def test_namespaces_are_retained_without_retained_objects(provision: Provision) -> None:
    # It may contain objects of others: an update adopts an existing namespace, and remains its
    # manager if the update then fails because the namespace belongs to another stack.
    values = changed("training.jobs.digits.on_change", "replace")
    for claim in values["storage"]["claims"].values():
        claim["retain"] = False
    plan = provision(values)
    namespaces = plan.names("kubernetes:core/v1:Namespace")
    assert len(namespaces) > 1
    assert all(plan[name].retainOnDelete for name in namespaces)
    assert not plan["storage-claim-checkpoints"].retainOnDelete


_VOLUME = {
    "capacity": "200Gi",
    "access_modes": ["ReadWriteMany"],
    "nfs": {"server": "nfs", "path": "/ml"},
}


def test_a_static_volume_stays_bound_to_a_claim_that_was_removed(provision: Provision) -> None:
    volume = provision(changed("storage.volumes.old", _VOLUME))["storage-volume-old"]
    assert volume.retainOnDelete
    assert list(volume.ignoreChanges) == ["spec.claimRef"]


def test_a_static_volume_is_reserved_for_its_claim(provision: Provision) -> None:
    values = changed("storage.volumes.old", _VOLUME)
    values["storage"]["claims"]["checkpoints"] = {"size": "100Gi", "volume": "old", "name": "ckpt"}
    plan = provision(values)
    reference = plan.inputs("storage-volume-old")["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("ml", "ckpt")
    assert "storage-volume-old" in plan.dependencies("storage-claim-ckpt")
    assert plan["storage-volume-old"].retainOnDelete
    assert not plan["storage-volume-old"].ignoreChanges


def test_claim_with_a_new_key_and_the_same_name_remains_the_same_resource(
    provision: Provision,
) -> None:
    values = changed("training.jobs.digits.datasets", "texts")
    values["storage"]["claims"]["texts"] = {
        **values["storage"]["claims"].pop("datasets"),
        "name": "datasets",
    }
    claim = provision(values)["storage-claim-datasets"]
    assert [alias.spec.name for alias in claim.aliases] == ["storage-claim-texts"]


def test_claim_does_not_become_the_claim_whose_name_is_its_key(provision: Provision) -> None:
    values = changed(
        "storage.claims.copies", {"name": "datasets", "size": "1Gi", "storage_class": "shared"}
    )
    values["storage"]["claims"]["datasets"]["name"] = "texts"
    plan = provision(values)
    assert not plan["storage-claim-texts"].aliases


def test_a_service_serves_the_current_run_of_its_job(provision: Provision) -> None:
    plan = provision(good())
    (job,) = plan.names(VOLCANO_JOB)
    run = plan.inputs(job)["metadata"]["name"]
    spec = plan.inputs("inference-digits-deployment")["spec"]["template"]["spec"]
    env = {variable["name"]: variable["value"] for variable in spec["containers"][0]["env"]}
    assert env["INFERENCE_MODEL_PATH"] == f"/models/{run}/export"


def test_service_can_be_pinned_to_an_earlier_run(provision: Provision) -> None:
    service = {"run": "digits-0123abcd", "cpu": 1, "memory": "1Gi"}
    plan = provision(changed("inference.services.digits", service))
    spec = plan.inputs("inference-digits-deployment")["spec"]["template"]["spec"]
    assert {"name": "RUN_NAME", "value": "digits-0123abcd"} in spec["containers"][0]["env"]


def test_invalid_configuration_stops_the_program(provision: Provision) -> None:
    with pytest.raises(pulumi.RunError, match="nodes is 0"):
        provision(changed("training.jobs.digits.nodes", 0))


def test_misspelled_configuration_key_is_rejected(
    provision: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(good())
    config = json.loads(os.environ["PULUMI_CONFIG"])
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({**config, "gpu-platform:traning": "{}"}))
    pulumi.runtime.set_all_config({**config, "gpu-platform:traning": "{}"}, [])
    with pytest.raises(pulumi.RunError, match="did you mean 'training'"):
        load_settings()


def test_value_with_too_many_brackets_is_reported_as_invalid(
    provision: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(good())
    config = json.loads(os.environ["PULUMI_CONFIG"]) | {"gpu-platform:training": "[" * 10**5}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(config))
    pulumi.runtime.set_all_config(config, [])
    with pytest.raises(pulumi.RunError, match="gpu-platform:training"):
        load_settings()


@pytest.mark.parametrize("key", ["gpu-platfrom:training", "gpu_platform:policies"])
def test_misspelled_project_in_a_key_is_rejected(
    key: str, provision: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(good())
    config = json.loads(os.environ["PULUMI_CONFIG"])
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({**config, key: "{}"}))
    message = f"{key} belongs to an unknown project: write gpu-platform:"
    with pytest.raises(pulumi.RunError, match=message):
        load_settings()


def test_keys_of_other_projects_are_ignored(
    provision: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(good())
    config = json.loads(os.environ["PULUMI_CONFIG"])
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({**config, "aws:region": "eu-west-1"}))
    assert load_settings().cluster.context == "staging"
