"""Rules for GPUs and shared memory: evasions that they reject, and manifests that they accept."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, Manifest, changed, evaluate_rule, remediate

POD = "spec/tasks/0/template/spec"
MAIN = f"{POD}/containers/0"
LIMITS, REQUESTS = f"{MAIN}/resources/limits", f"{MAIN}/resources/requests"
METADATA = "spec/tasks/0/template/metadata"
GPU = {"nvidia.com/gpu": 8, "memory": "64Gi"}


def job(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.volcano_job(), *edits)


def test_device_variable_is_rejected_even_with_a_gpu_limit() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    (message,) = evaluate_rule("gpu-limit-present", job((f"{MAIN}/env", env)))
    assert 'env[0].value: found "all"' in message


@pytest.mark.parametrize(
    "edit",
    [
        (f"{MAIN}/env", [{"name": "AMD_VISIBLE_DEVICES", "value": "0"}]),
        (f"{MAIN}/env", [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}]),
        (f"{MAIN}/volumeMounts/2", {"mountPath": "/var/run/nvidia-container-devices/all"}),
        (f"{MAIN}/volumeMounts/2", {"mountPath": "/var//run/./nvidia-container-devices/all"}),
        (f"{METADATA}/annotations", {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}),
        (f"{METADATA}/annotations", {"gpu-memory": "2000"}),
        (f"{METADATA}/labels/sharedgpu~gpu_request", "0.5"),
        ("metadata/annotations", {"gpu-fraction": "0.5"}),
    ],
    ids=[
        "AMD device variable",
        "variable from a reference",
        "device mount",
        "device mount at an unusual path",
        "CDI annotation",
        "GPU memory annotation",
        "GPU fraction label",
        "annotation on the Job",
    ],
)
def test_devices_requested_without_the_scheduler_are_rejected(edit: tuple[str, Any]) -> None:
    assert evaluate_rule("gpu-limit-present", job(edit))
    config = {"systemWorkloads": ["training/Job.batch.volcano.sh/digits"]}
    assert evaluate_rule("gpu-limit-present", job(edit), config=config) == []


def test_patterns_for_names_ignore_case() -> None:
    annotated = job((f"{METADATA}/annotations", {"sidecar.istio.io/proxyImage": "a:1.0"}))
    assert evaluate_rule("annotations-bounded", annotated)
    config = {"allowedAnnotations": ["sidecar.istio.io/proxyImage"]}
    assert evaluate_rule("annotations-bounded", annotated, config=config) == []
    config = {"deviceAnnotations": ["*/proxyImage"]}
    assert evaluate_rule("gpu-limit-present", annotated, config=config)


def test_gpu_request_without_a_limit_is_reported_only_once() -> None:
    requested = job((f"{LIMITS}/nvidia.com~gpu", REMOVED))
    assert evaluate_rule("gpu-requests-equal-limits", requested)
    assert evaluate_rule("gpu-limit-present", requested) == []


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_container_may_disable_gpu_devices(value: str) -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    assert evaluate_rule("gpu-limit-present", job((f"{MAIN}/env", env))) == []
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.metadata("env")}
    data = {"NVIDIA_VISIBLE_DEVICES": value}
    assert evaluate_rule("device-names-kept", {**settings, "data": data}) == []
    data = {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert evaluate_rule("device-names-kept", {**settings, "data": data})


def test_gpu_runtime_class_without_a_gpu_is_rejected() -> None:
    runtime = (f"{POD}/runtimeClassName", "nvidia-cdi")
    assert evaluate_rule("gpu-limit-present", job(runtime)) == []
    web = job(
        runtime, (f"{LIMITS}/nvidia.com~gpu", REMOVED), (f"{REQUESTS}/nvidia.com~gpu", REMOVED)
    )
    messages = evaluate_rule("gpu-limit-present", web, config={"components": []})
    assert "runtimeClassName: found" in messages[0]
    kata_classes_only = {"components": [], "gpuRuntimeClasses": ["kata*"]}
    assert evaluate_rule("gpu-limit-present", web, config=kata_classes_only) == []


def task(name: str, replicas: int, gpus: int | None) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    containers = [{"name": "main", "resources": resources}]
    return {"name": name, "replicas": replicas, "template": {"spec": {"containers": containers}}}


@pytest.mark.parametrize(
    "tasks",
    [
        [task("main", 1, 8), task("worker", 16, None)],
        [task("main", 1, 8), task("worker", 1, None)],
        [task("ps", 2, None), task("worker", 2, None)],
    ],
)
def test_workers_without_gpus_are_rejected(tasks: list[dict[str, Any]]) -> None:
    assert evaluate_rule("gpu-limit-present", job(("spec/tasks", tasks)))


@pytest.mark.parametrize(
    "tasks",
    [
        [task("mpimaster", 1, None), task("mpiworker", 1, 8)],
        [task("ps", 4, None), task("worker", 2, 8)],
        [task("starts-the-others", 1, None), task("worker", 2, 8)],
    ],
)
def test_launchers_need_neither_gpus_nor_shared_memory(tasks: list[dict[str, Any]]) -> None:
    manifest = job(("spec/tasks", tasks))
    assert evaluate_rule("gpu-limit-present", manifest) == []
    assert len(evaluate_rule("shm-mounted", manifest)) == 1


def test_custom_names_of_cpu_tasks_can_be_configured() -> None:
    manifest = job(("spec/tasks", [task("digester", 4, None), task("worker", 2, 8)]))
    assert evaluate_rule("gpu-limit-present", manifest)
    assert evaluate_rule("gpu-limit-present", manifest, config={"cpuTasks": ["digester"]}) == []


@pytest.mark.parametrize("kind", ["TrainingRuntime", "ClusterTrainingRuntime"])
def test_training_runtimes_may_leave_gpus_to_the_train_job(kind: str) -> None:
    def replicated(name: str) -> dict[str, Any]:
        spec = {"template": {"spec": {"template": {"spec": {"containers": [{"name": name}]}}}}}
        return {"name": name, **spec}

    jobs = [replicated("dataset-initializer"), replicated("node")]
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": kind,
        "metadata": {"name": "torch"},
        "spec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }
    assert evaluate_rule("gpu-limit-present", runtime) == []
    (message,) = evaluate_rule("shm-mounted", runtime)
    assert "replicatedJobs[1]" in message


POD_LEVEL = {"limits": {"cpu": 8, "memory": "64Gi"}, "requests": {"memory": "64Gi"}}


def with_pod_level(resources: dict[str, Any]) -> Manifest:
    return job(
        (f"{MAIN}/resources", {"limits": {"nvidia.com/gpu": 1}}), (f"{POD}/resources", resources)
    )


def test_pod_level_memory_and_cpu_are_sufficient() -> None:
    assert evaluate_rule("gpu-memory-guaranteed", with_pod_level(POD_LEVEL)) == []
    assert evaluate_rule("gpu-cpu-requested", with_pod_level(POD_LEVEL)) == []
    assert evaluate_rule("shm-fits-memory", with_pod_level(POD_LEVEL)) == []


@pytest.mark.parametrize(
    ("rule", "resources"),
    [
        ("gpu-memory-guaranteed", {"limits": {"memory": "64Gi"}, "requests": {"memory": "1Gi"}}),
        ("gpu-memory-guaranteed", {"limits": {"memory": "64"}}),
        ("gpu-cpu-requested", {"requests": {"cpu": "1m"}}),
        ("shm-fits-memory", {"limits": {"memory": "1Gi"}}),
    ],
)
def test_pod_level_memory_and_cpu_are_checked(rule: str, resources: dict[str, Any]) -> None:
    assert evaluate_rule(rule, with_pod_level(resources))


@pytest.mark.parametrize(
    ("toleration", "accepted"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "other"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Equal"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exist"}, False),
        ({"key": "amd.com/gpu", "operator": "Exists"}, False),
        ({"value": "present"}, False),
    ],
)
def test_toleration_must_match_key_operator_and_value(
    toleration: dict[str, str], accepted: bool
) -> None:
    messages = evaluate_rule("gpu-toleration", job((f"{POD}/tolerations", [toleration])))
    assert (messages == []) is accepted


@pytest.mark.parametrize(
    ("resource", "key"),
    [("amd.com/gpu", "amd.com/gpu"), ("volcano.sh/vgpu-number", "nvidia.com/gpu")],
)
def test_each_gpu_vendor_has_its_own_taint(resource: str, key: str) -> None:
    edits = (
        (f"{MAIN}/resources", {"limits": {resource: 1}}),
        (f"{POD}/tolerations", [{"key": key, "operator": "Exists"}]),
    )
    assert evaluate_rule("gpu-toleration", job(*edits)) == []
    assert evaluate_rule("gpu-toleration", job(*edits, (f"{POD}/tolerations", [])))
    fixed = remediate("gpu-toleration", job(*edits, (f"{POD}/tolerations", [])))
    assert fixed is not None
    (added,) = fixed["spec"]["tasks"][0]["template"]["spec"]["tolerations"]
    assert added["key"] == key


def test_gpus_of_unknown_vendors_need_a_toleration_only_if_configured() -> None:
    edits: list[tuple[str, Any]] = [
        (f"{MAIN}/resources", {"limits": {"x.io/chip": 1}}),
        (f"{POD}/tolerations", []),
    ]
    assert evaluate_rule("gpu-toleration", job(*edits)) == []
    assert evaluate_rule("gpu-toleration", job(*edits), config={"taints": {"x.io/*": "x.io/chip"}})


@pytest.mark.parametrize(
    ("gpus", "advice"),
    [
        (16, "at most 8 nvidia.com/gpu per pod"),
        (4, "write 8 nvidia.com/gpu per pod, all GPUs of a node"),
    ],
)
def test_each_pod_of_a_gang_must_use_all_gpus_of_one_node(gpus: int, advice: str) -> None:
    manifest = job((f"{LIMITS}/nvidia.com~gpu", gpus))
    (message,) = evaluate_rule("gpu-whole-nodes", manifest, config={"gpusPerNode": 8})
    assert advice in message


def test_server_with_more_gpus_than_a_node_is_rejected() -> None:
    server = changed(
        manifests.deployment(),
        ("spec/template/spec/containers/0/resources/limits/nvidia.com~gpu", 16),
    )
    assert evaluate_rule("gpu-whole-nodes", server, config={"gpusPerNode": 8})


def test_gpus_of_all_containers_in_a_pod_are_compared_with_one_node() -> None:
    second_container = {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 4}}}
    manifest = job((f"{LIMITS}/nvidia.com~gpu", 4), (f"{POD}/containers/1", second_container))
    assert evaluate_rule("gpu-whole-nodes", manifest, config={"gpusPerNode": 8}) == []


def test_pods_without_gpus_do_not_make_a_job_train_on_several_nodes() -> None:
    config = {"gpusPerNode": 8}
    launcher = {"name": "launcher", "replicas": 1, "template": {"spec": manifests.pod_spec()}}
    launcher["template"]["spec"]["containers"] = [manifests.container(gpus=None)]
    edits = (("spec/tasks/0/replicas", 1), (f"{LIMITS}/nvidia.com~gpu", 4))
    manifest = job(*edits, ("spec/tasks/1", launcher))
    assert evaluate_rule("gpu-whole-nodes", manifest, config=config) == []
    two_workers = changed(manifest, ("spec/tasks/0/replicas", 2))
    assert evaluate_rule("gpu-whole-nodes", two_workers, config=config)


def test_gpu_fractions_are_not_compared_with_the_gpus_of_a_node() -> None:
    manifest = job((f"{MAIN}/resources", {"limits": {"nvidia.com/mig-1g.10gb": 56}}))
    assert evaluate_rule("gpu-whole-nodes", manifest, config={"gpusPerNode": 8}) == []


SIZE = f"{POD}/volumes/0/emptyDir/sizeLimit"


@pytest.mark.parametrize("size", ["64m", "1", "1Mi", "63Mi", 0])
def test_tiny_shared_memory_is_rejected(size: Any) -> None:
    (message,) = evaluate_rule("shm-bounded-memory", job((SIZE, size)))
    assert "a size of at least 64Mi" in message


def test_pods_without_gpus_may_have_small_shared_memory() -> None:
    spec = manifests.pod_spec()
    spec["containers"] = [manifests.container(gpus=None)]
    spec["volumes"][0]["emptyDir"]["sizeLimit"] = "1Mi"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": manifests.metadata("log"), "spec": spec}
    assert evaluate_rule("shm-bounded-memory", pod) == []
    spec["volumes"][0]["emptyDir"]["sizeLimit"] = "1m"
    (message,) = evaluate_rule("shm-bounded-memory", pod)
    assert "write a size, such as 1Gi" in message


def test_shared_memory_of_the_node_is_reported_once() -> None:
    pod = changed(
        {"apiVersion": "v1", "kind": "Pod", "metadata": manifests.metadata("mps")},
        ("spec", manifests.pod_spec()),
        ("spec/volumes/0", {"name": "shm", "hostPath": {"path": "/run/nvidia/mps/shm"}}),
    )
    assert evaluate_rule("shm-bounded-memory", pod) == []
    assert evaluate_rule("shm-not-from-host", pod)
    exempt = {"systemWorkloads": ["training/Pod/mps"]}
    assert evaluate_rule("shm-not-from-host", pod, config=exempt) == []


def test_minimum_shared_memory_can_be_configured() -> None:
    assert evaluate_rule("shm-bounded-memory", job((SIZE, "1Gi")), config={"minSize": "2Gi"})


@pytest.mark.parametrize(("memory", "size"), [("16Gi", "1Gi"), ("256Mi", "204Mi"), ("1Mi", "64Mi")])
@pytest.mark.parametrize("rule", ["shm-mounted", "shm-bounded-memory"])
def test_remediation_adds_shared_memory_that_fits(rule: str, memory: str, size: str) -> None:
    without_shm = ((f"{POD}/volumes", []), (f"{MAIN}/volumeMounts", []))
    edits = without_shm if rule == "shm-mounted" else ((f"{POD}/volumes/0/emptyDir", {}),)
    manifest = job((f"{MAIN}/resources/limits/memory", memory), *edits)
    assert size in " ".join(evaluate_rule(rule, manifest))
    fixed = remediate(rule, manifest)
    assert fixed is not None
    volume = fixed["spec"]["tasks"][0]["template"]["spec"]["volumes"][0]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


@pytest.mark.parametrize(("memory", "size"), [("512Gi", "8Gi"), ("4Gi", "3276Mi")])
def test_remediation_adds_shared_memory_for_all_gpus(memory: str, size: str) -> None:
    manifest = job(
        (f"{LIMITS}/nvidia.com~gpu", 8),
        (f"{LIMITS}/memory", memory),
        (f"{POD}/volumes", []),
        (f"{MAIN}/volumeMounts", []),
    )
    fixed = remediate("shm-mounted", manifest)
    assert fixed is not None
    volume = fixed["spec"]["tasks"][0]["template"]["spec"]["volumes"][0]
    assert volume["emptyDir"]["sizeLimit"] == size
    fits = memory == "512Gi"
    assert (evaluate_rule("shm-per-gpu", fixed) == []) is fits


def test_amounts_of_gpu_memory_need_no_shared_memory() -> None:
    share = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000}
    manifest = job((f"{MAIN}/resources", {"limits": share}), (SIZE, "1Gi"))
    assert evaluate_rule("shm-per-gpu", manifest) == []
    shares = changed(manifest, (f"{LIMITS}/volcano.sh~vgpu-number", 2))
    assert "at least 2Gi, 1Gi per GPU" in evaluate_rule("shm-per-gpu", shares)[0]


def test_read_only_shared_memory_is_rejected() -> None:
    manifest = job((f"{MAIN}/volumeMounts/0/readOnly", True))
    assert "readOnly" in evaluate_rule("shm-mounted", manifest)[0]


def test_init_container_with_gpus_needs_shared_memory() -> None:
    init = {"name": "train", "resources": {"limits": GPU}}
    assert evaluate_rule("shm-mounted", job((f"{POD}/initContainers", [init])))


CACHE = {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}


def with_cache_mount(**fields: Any) -> Manifest:
    mount = {"name": "cache", "mountPath": "/cache"}
    container = {"name": "side", "volumeMounts": [mount], **fields}
    return job((f"{POD}/containers/1", container), (f"{POD}/volumes/2", CACHE))


def test_gpu_container_without_a_memory_limit_is_reported_only_once() -> None:
    unlimited = job((f"{LIMITS}/memory", REMOVED))
    assert evaluate_rule("gpu-memory-guaranteed", unlimited)
    assert evaluate_rule("shm-fits-memory", unlimited) == []


@pytest.mark.parametrize("size", [REMOVED, 0, "many"])
def test_shared_memory_without_a_size_is_reported_only_once(size: Any) -> None:
    unbounded = job((SIZE, size))
    assert evaluate_rule("shm-bounded-memory", unbounded)
    assert evaluate_rule("shm-fits-memory", unbounded) == []


def test_memory_volumes_need_a_memory_limit() -> None:
    (message,) = evaluate_rule("shm-fits-memory", with_cache_mount())
    assert "containers[1].resources.limits.memory: not set" in message
    assert (
        evaluate_rule("shm-fits-memory", with_cache_mount(resources={"limits": {"memory": "2Gi"}}))
        == []
    )


@pytest.mark.parametrize("size", ["0", 0, "-1Gi", "1e100", "Ki", "0" * 70 + "1", None])
def test_memory_volumes_need_a_readable_size(size: Any) -> None:
    place = f"{POD}/volumes/2/emptyDir/sizeLimit"
    manifest = changed(with_cache_mount(resources={"limits": {"memory": "2Gi"}}), (place, size))
    (message,) = evaluate_rule("shm-fits-memory", manifest)
    assert "sizeLimit: " in message


def test_read_only_mount_of_a_memory_volume_does_not_count_towards_memory() -> None:
    mount = {"name": "cache", "mountPath": "/cache", "readOnly": True}
    assert evaluate_rule("shm-fits-memory", with_cache_mount(volumeMounts=[mount])) == []


def test_memory_volumes_together_must_fit_into_the_memory_of_the_pod() -> None:
    manifest = changed(
        with_cache_mount(resources={"limits": {"memory": "4Gi"}}),
        (f"{POD}/resources", {"limits": {"memory": "2Gi"}}),
    )
    (message,) = evaluate_rule("shm-fits-memory", manifest)
    assert 'memory limit of "2Gi"' in message


@pytest.mark.parametrize(
    ("path", "mount", "accepted"),
    [
        ("/dev", "/dev", False),
        ("/", "/", False),
        ("/", "/host", True),
        ("/dev/dri", "/dev/dri", True),
    ],
)
def test_host_path_volume_that_exposes_host_shared_memory_is_rejected(
    path: str, mount: str, accepted: bool
) -> None:
    manifest = job(
        (f"{MAIN}/volumeMounts/2", {"name": "host", "mountPath": mount}),
        (f"{POD}/volumes/2", {"name": "host", "hostPath": {"path": path}}),
    )
    assert (evaluate_rule("shm-not-from-host", manifest) == []) is accepted
    config = {"systemWorkloads": ["training/Job.batch.volcano.sh/digits"]}
    assert evaluate_rule("shm-not-from-host", manifest, config=config) == []
