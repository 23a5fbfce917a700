from dataclasses import replace

from infra.manifests import compact
from infra.pods import (
    GpuNodes,
    InitContainer,
    Mount,
    Pod,
    Rdma,
    Volume,
    even_spread,
    exclusive_node_affinity,
    pod_template,
    shared_label_affinity,
)

NODES = GpuNodes(
    resource="nvidia.com/gpu",
    node_selector={"nvidia.com/gpu.present": "true"},
    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
    runtime_class="nvidia",
)
POD = Pod(
    container="training",
    image="registry.example.com/training@sha256:1",
    command=["python3", "-m", "training"],
    cpu="2",
    memory="16Gi",
    shm="4Gi",
    gpus=2,
    gpu_nodes=NODES,
    service_account="training",
    grace_seconds=60,
    labels={"app": "training"},
    mounts=[
        Mount(name="checkpoints", claim="ckpt", path="/checkpoints"),
        Mount(name="datasets", claim="data", path="/data", read_only=True),
    ],
)


def test_pod_template_contains_all_configured_fields() -> None:
    assert pod_template(POD) == {
        "metadata": {"labels": {"app": "training"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 60,
            "serviceAccountName": "training",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "training",
                    "image": "registry.example.com/training@sha256:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "training"],
                    "env": [
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "PYTHONUNBUFFERED", "value": "1"},
                    ],
                    "resources": {
                        "requests": {"cpu": "2", "memory": "16Gi", "nvidia.com/gpu": "2"},
                        "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "checkpoints", "mountPath": "/checkpoints"},
                        {"name": "datasets", "mountPath": "/data", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "ckpt"}},
                {
                    "name": "datasets",
                    "persistentVolumeClaim": {"claimName": "data", "readOnly": True},
                },
            ],
        },
    }


def test_pod_without_gpus_can_run_on_any_node() -> None:
    spec = pod_template(replace(POD, gpus=0))["spec"]
    assert "nodeSelector" not in spec
    assert "runtimeClassName" not in spec
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "16Gi"}


def test_any_gpu_resource_can_be_requested() -> None:
    pod = replace(POD, gpu_nodes=GpuNodes(resource="amd.com/gpu"))
    limits = pod_template(pod)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "16Gi", "amd.com/gpu": "2"}


def test_ephemeral_storage_is_requested_and_limited() -> None:
    resources = pod_template(replace(POD, disk="20Gi"))["spec"]["containers"][0]["resources"]
    assert resources["requests"]["ephemeral-storage"] == "20Gi"
    assert resources["limits"]["ephemeral-storage"] == "20Gi"


def test_rdma_adds_device_and_variables_but_no_capability() -> None:
    pod = replace(POD, rdma=Rdma(resource="rdma/hca", count=1, interface="eth0", hca="mlx5_0"))
    container = pod_template(pod)["spec"]["containers"][0]
    assert container["resources"]["requests"]["rdma/hca"] == "1"
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"} in container["env"]
    assert {"name": "NCCL_IB_HCA", "value": "mlx5_0"} in container["env"]


def test_variables_of_the_workload_override_the_defaults() -> None:
    container = pod_template(replace(POD, env={"HOME": "/home"}))["spec"]["containers"][0]
    assert container["env"][0] == {"name": "HOME", "value": "/home"}


def test_even_spread_is_preferred_by_default_and_can_be_strict() -> None:
    (spread,) = even_spread({"run": "a"})
    # A strict constraint could keep a gang pending although a node is free.
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    (strict,) = even_spread({"run": "a"}, strict=True)
    assert strict["whenUnsatisfiable"] == "DoNotSchedule"
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["nodeTaintsPolicy"] == "Honor"
    assert spread["labelSelector"] == {"matchLabels": {"run": "a"}}


def test_pod_without_gpus_sees_none_and_stays_off_gpu_nodes() -> None:
    spec = pod_template(replace(POD, gpus=0))["spec"]
    (container,) = spec["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert "tolerations" not in spec


def test_init_container_sees_no_gpus() -> None:
    spec = pod_template(replace(POD, init=[InitContainer(name="fetch", command=["true"])]))["spec"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in spec["initContainers"][0]["env"]
    names = {variable["name"] for variable in spec["containers"][0]["env"]}
    assert "NVIDIA_VISIBLE_DEVICES" not in names


def test_init_container_has_the_cpu_and_memory_requests_of_its_pod() -> None:
    spec = pod_template(replace(POD, init=[InitContainer(name="fetch", command=["true"])]))["spec"]
    sizes = spec["containers"][0]["resources"]
    (init,) = spec["initContainers"]
    for kind, names in (("requests", {"cpu", "memory"}), ("limits", {"memory"})):
        assert init["resources"][kind] == {name: sizes[kind][name] for name in names}


def test_workload_tolerations_are_added_to_those_for_gpu_nodes() -> None:
    spot = {"key": "spot", "operator": "Exists"}
    assert pod_template(replace(POD, tolerations=[spot]))["spec"]["tolerations"] == [
        *NODES.tolerations,
        spot,
    ]
    assert pod_template(replace(POD, gpus=0, tolerations=[spot]))["spec"]["tolerations"] == [spot]


def test_pod_with_host_network_can_resolve_cluster_names() -> None:
    spec = pod_template(replace(POD, host_network=True))["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_additional_volumes_follow_the_default_volumes() -> None:
    token = Volume(
        name="token", source={"secret": {"secretName": "hub"}}, path="/token", read_only=True
    )
    spec = pod_template(replace(POD, volumes=[token]))["spec"]
    assert spec["volumes"][-1] == {"name": "token", "secret": {"secretName": "hub"}}
    assert spec["containers"][0]["volumeMounts"][-1] == {
        "name": "token",
        "mountPath": "/token",
        "readOnly": True,
    }


def test_mounts_of_one_claim_share_a_volume() -> None:
    # The kubelet never starts a pod in which two volumes refer to the same claim.
    pod = replace(
        POD,
        mounts=[
            Mount(name="checkpoints", claim="shared", path="/checkpoints"),
            Mount(name="datasets", claim="shared", path="/data", read_only=True),
            Mount(name="other", claim="other", path="/other", read_only=True),
        ],
        volumes=[
            Volume(
                name="more", source={"persistentVolumeClaim": {"claimName": "other"}}, path="/more"
            )
        ],
        init=[InitContainer(name="fetch", command=["x"], mounts={"datasets": "/in"})],
    )
    spec = pod_template(pod)["spec"]
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}},
        {"name": "other", "persistentVolumeClaim": {"claimName": "other"}},
    ]
    mounts = [
        m for m in spec["containers"][0]["volumeMounts"] if m["name"] in ("checkpoints", "other")
    ]
    assert mounts == [
        {"name": "checkpoints", "mountPath": "/checkpoints"},
        {"name": "checkpoints", "mountPath": "/data", "readOnly": True},
        {"name": "other", "mountPath": "/other", "readOnly": True},
        {"name": "other", "mountPath": "/more"},
    ]
    assert {"name": "checkpoints", "mountPath": "/in"} in spec["initContainers"][0]["volumeMounts"]


def test_value_from_a_reference_stays_a_reference() -> None:
    reference = {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    container = pod_template(replace(POD, env={"TOKEN": reference}))["spec"]["containers"][0]
    assert container["env"][-1] == {"name": "TOKEN", **reference}


def test_pod_without_a_command_runs_the_images_command() -> None:
    assert "command" not in pod_template(replace(POD, command=[]))["spec"]["containers"][0]


def test_packing_is_preferred_or_required() -> None:
    (term,) = shared_label_affinity({"run": "a"}, "rack", required=True)["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (preference,) = shared_label_affinity({"run": "a"}, "rack", required=False)["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term == {"topologyKey": "rack", "labelSelector": {"matchLabels": {"run": "a"}}}
    assert preference == {"weight": 100, "podAffinityTerm": term}


def test_exclusive_node_affinity_excludes_workloads_in_all_namespaces() -> None:
    (term,) = exclusive_node_affinity("workload", {"role": "leader"})["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {
            "matchExpressions": [
                {"key": "workload", "operator": "Exists"},
                {"key": "role", "operator": "NotIn", "values": ["leader"]},
            ]
        },
        "namespaceSelector": {},
    }


def test_empty_fields_are_omitted() -> None:
    fields = {"none": None, "empty": {}, "zero": 0, "no": False, "list": [], "text": ""}
    assert compact(fields) == {"zero": 0, "no": False, "list": [], "text": ""}
