"""Many kinds of invalid configuration, each reported in one sentence."""

import pytest

from infra.settings import SettingsError, validate
from tests.infra.examples import Mistake, assert_reported, changed, good, problems, without

JOB = "training.jobs.digits"

MISTAKES: dict[str, Mistake] = {
    "wrong type": (f"{JOB}.nodes", "two", '"two", but must be an integer'),
    "boolean instead of a number": (f"{JOB}.nodes", True, "must be an integer"),
    "fractional number of nodes": (f"{JOB}.nodes", 2.5, "2.5, but must be an integer"),
    "list instead of a mapping": ("training", [], "must be a mapping"),
    "out of range": (f"{JOB}.retries", 0, "must be at least 1"),
    "zero GPUs": (f"{JOB}.gpus_per_node", 0, "must be at least 1"),
    "unknown key": (f"{JOB}.ndoes", 2, "did you mean 'nodes'?"),
    "unknown concern": ("traning", {}, "did you mean 'training'?"),
    "removed key of a section": ("gpu.install", False, "`provider: existing` replaces"),
    "removed key of a job": (f"{JOB}.ttl_seconds", 100, "no longer supported: remove it"),
    "replaced key of a job": (f"{JOB}.suspend", True, "`state: suspended` replaces"),
    "replaced key of a service": (
        "inference.services.digits.autoscaling",
        {"max": 2, "queue_depth": 3},
        "inference.services.digits.autoscaling.queue_depth",
        "use `requests_in_flight`",
    ),
    "unknown key with the name of a removed key": (
        f"{JOB}.hyperparameters.suspend",
        True,
        "is not a known key",
    ),
    "unknown choice": (f"{JOB}.kind", "torch", "'volcano', 'indexed', 'pytorch'"),
    "quantity with an unknown unit": (f"{JOB}.memory", "64GB", "512Mi or 1.5Gi"),
    "quantity in milli-bytes": (f"{JOB}.memory", "512m", "512Mi"),
    "zero CPUs": (f"{JOB}.cpu", "0", "must be greater than zero"),
    "invalid name": ("tenancy.namespace", "ML_Dev", "lower-case letters"),
    "system namespace": ("tenancy.namespace", "kube-system", "only the stack"),
    "system namespace for node health": (
        "gpu.node_health",
        {"namespace": "kube-system"},
        "gpu.node_health.namespace",
        "only the stack",
    ),
    "same namespace for two sections": (
        "gpu.namespace",
        "ml",
        "tenancy.namespace",
        "use different names",
    ),
    "invalid job name": ("training.jobs.Digits_1", {}, "short DNS label"),
    "invalid variable name": (f"{JOB}.env", {"1X": "a"}, f"{JOB}.env.1X", "variable name"),
    "label reserved for this stack": (
        "cluster.labels",
        {"scheduling.volcano.sh/queue-name": "a"},
        "keys with the prefix scheduling.volcano.sh are reserved",
    ),
    "image without a version": ("gpu.image", "team/plugin", "must name a version"),
    "registry with a path": (
        "images.registry",
        "registry.example.com/team",
        "set the path in `repository`",
    ),
    "unpinned image": (
        "images.workloads.training.reference",
        "registry.example.com/team/training:1.0",
        "@sha256:",
    ),
    "image without a source": (
        "images.workloads.training",
        {},
        "exactly one of `build` and `reference`",
    ),
    "build without a registry": (
        "images.workloads.training",
        {"build": {"dockerfile": "x", "base_image": "a:1", "sources": ["training"]}},
        "images",
        "has no `registry` to push to",
    ),
    "build with missing sources": (
        "images",
        {
            "registry": "registry.example.com",
            "workloads": {
                "training": {
                    "build": {
                        "dockerfile": "no/Dockerfile",
                        "base_image": "a:1",
                        "sources": ["training", "no-such-folder"],
                    }
                },
                "inference": {"reference": f"a/b@sha256:{'0' * 64}"},
            },
        },
        "images.workloads.training.build.sources",
        "does not exist",
    ),
    "registry user without a registry": ("images.username", "robot", "images", "no `registry`"),
    "unknown queue": (f"{JOB}.queue", "reserch", "use research"),
    "unknown claim": (f"{JOB}.datasets", "data", "checkpoints"),
    "unknown priority class": (f"{JOB}.priority_class", "x", "training"),
    "unknown image": (f"{JOB}.image", "trainer", "use inference or training"),
    "unknown parent queue": (
        "volcano.queues.research.parent",
        "root-queue",
        "not a queue of this stack",
    ),
    "cycle of queues": (
        "volcano.queues",
        {"research": {"parent": "lab"}, "lab": {"parent": "research"}},
        "volcano.queues.lab.parent",
        "its own ancestor",
    ),
    "less ephemeral storage than /tmp": (
        f"{JOB}.ephemeral_storage",
        "512Mi",
        "must be at least 1Gi",
    ),
    "shm larger than memory": (f"{JOB}.shm", "64Gi", JOB, "counts against the memory limit"),
    "gang above the quota": ("tenancy.quota.gpus", 4, f"{JOB}.nodes", "would never start"),
    "gang above the queue": (
        "volcano.queues.research.capability",
        {"nvidia.com/gpu": 4},
        f"{JOB}.queue",
        "would never start",
    ),
    "memory above the queue": (
        "volcano.queues.research.capability",
        {"memory": "100Gi"},
        f"{JOB}.queue",
        "would never start",
    ),
    "pod above the limit": ("tenancy.limits", {"max_memory": "8Gi"}, f"{JOB}.memory", "more than"),
    "default above the limit": (
        "tenancy.limits",
        {"default_memory": "96Gi", "max_memory": "64Gi"},
        "sets max_memory to 64Gi, less than default_memory (96Gi)",
    ),
    "duplicate claim of the recorder": (
        "logs.recorder",
        {"claims": ["checkpoints", "datasets", "checkpoints"]},
        "logs.recorder.claims",
        "contains a duplicate claim: list each claim only once",
    ),
    "gang above the memory quota": (
        "tenancy.quota.memory_limits",
        "64Gi",
        f"{JOB}.nodes",
        "would never start",
    ),
    "gang above the CPU quota": ("tenancy.quota.cpu", 1, f"{JOB}.nodes", "would never start"),
    "gang above the pod quota": ("tenancy.quota.pods", 1, f"{JOB}.nodes", "would never start"),
    "GPUs among other devices": (
        "tenancy.quota.devices",
        {"nvidia.com/gpu": 32},
        "tenancy.quota.devices.nvidia.com/gpu",
        "set gpu-platform:tenancy.quota.gpus instead",
    ),
    "claims above the quota": (
        "tenancy.quota.claims",
        1,
        "storage.claims",
        "set a quota of at least 2",
    ),
    "single-node claim for checkpoints": (
        "storage.claims.checkpoints.access_modes",
        ["ReadWriteOnce"],
        f"{JOB}.checkpoints",
        "needs ReadWriteMany",
    ),
    "class without parameters": (
        "storage.classes.shared.parameters",
        {},
        "storage.classes.shared",
        "server, share",
    ),
    "volume without a source": (
        "storage.volumes.old",
        {"capacity": "1Gi", "access_modes": ["ReadWriteMany"]},
        "exactly one of `local`, `nfs` and `csi`",
    ),
    "unknown volume": ("storage.claims.checkpoints.volume", "old", "not declared"),
    "claim without a class or a volume": (
        "storage.claims.datasets",
        {"size": "1Gi"},
        "must set `storage_class`",
    ),
    "duplicate claim name": ("storage.claims.datasets.name", "checkpoints", "use different names"),
    "invalid hyperparameter": (f"{JOB}.hyperparameters.epochs", 0, "must be at least 1"),
    "unknown hyperparameter": (f"{JOB}.hyperparameters.epoch", 3, "did you mean 'epochs'?"),
    "dataset that does not fit the model": (
        f"{JOB}.hyperparameters.dataset",
        "cifar10",
        f"{JOB}.hyperparameters",
        "digits or synthetic",
    ),
    "hyperparameter that the stack sets": (
        f"{JOB}.hyperparameters.run_dir",
        "/elsewhere",
        f"{JOB}.hyperparameters",
        "remove it",
    ),
    "deadline that the kind does not support": (
        f"{JOB}.deadline_seconds",
        60,
        JOB,
        "kind indexed,",
    ),
    "host network in a restricted namespace": (
        f"{JOB}.host_network",
        True,
        "tenancy.pod_security",
        "'privileged'",
    ),
    "GPU from another vendor": (
        "gpu.resource",
        "amd.com/gpu",
        "gpu",
        "provider device-plugin does not offer it: use nvidia.com/gpu",
    ),
    "misspelled GPU resource": (f"{JOB}.gpu_resource", "nvidia.com/gpus", "use nvidia.com/gpu"),
    **{
        f"{key} without a domain": (key, value, f"{key}{field}", "such as nvidia.com/gpu")
        for key, value, field in (
            ("gpu", {"provider": "existing", "resource": "gpu"}, ".resource"),
            (f"{JOB}.gpu_resource", "gpu", ""),
            (f"{JOB}.rdma", {"resource": "hca", "interface": "eth0"}, ".resource"),
            ("inference.services.digits.gpu_resource", "gpu", ""),
        )
    },
    "long name of a queue": ("volcano.queues", {"q" * 64: {}}, "must have at most 63 characters"),
    "name of a provisioner": (
        "storage.classes.fast",
        {"kind": "other", "provisioner": "my driver"},
        "storage.classes.fast.provisioner",
        "must be a Kubernetes name",
    ),
    "long name of a driver": (
        "storage.volumes.fast",
        {
            "capacity": "1Ti",
            "access_modes": ["ReadWriteMany"],
            "csi": {"driver": "d" * 64, "handle": "1"},
        },
        "storage.volumes.fast.csi.driver",
        "must have at most 63 characters",
    ),
    "shares without time slicing": (
        f"{JOB}.gpu_resource",
        "nvidia.com/gpu.shared",
        "set gpu-platform:gpu.time_slicing",
    ),
    "GPU without a domain in a queue": (
        "volcano.queues.research.capability",
        {"gpu": 16},
        "volcano.queues.research.capability.gpu",
        "such as nvidia.com/gpu",
    ),
    "pods in the device quota": ("tenancy.quota.devices", {"pods": 5}, "not the name of a device"),
    "callers without isolation": (
        "tenancy.network",
        {"isolate": False, "inference_from": ["gateway"]},
        "set isolate: true",
    ),
    "RDMA device that is a GPU": (
        f"{JOB}.rdma",
        {"resource": "nvidia.com/gpu", "interface": "eth0"},
        f"{JOB}.rdma.resource",
        "such as rdma/hca",
    ),
    "volume that hides /proc": (
        f"{JOB}.volumes",
        {"data": {"path": "/proc/1", "scratch": "1Gi"}},
        f"{JOB}.volumes.data",
        "reserved in every pod",
    ),
    "MIG slice that is not offered": (
        f"{JOB}.gpu_resource",
        "nvidia.com/mig-1g.10gb",
        "offered only if gpu-platform:gpu.mig_strategy is 'mixed'",
    ),
    "several shares of one GPU": (
        "gpu.time_slicing",
        {"replicas": 4, "rename": False},
        f"{JOB}.gpus_per_node",
        "set 1",
    ),
    "unknown model": (
        f"{JOB}.hyperparameters.model",
        "resnet9000",
        'is "resnet9000": use digits-net,',
    ),
    "boolean for a numeric hyperparameter": (
        f"{JOB}.hyperparameters.epochs",
        True,
        "is true: a boolean is not valid",
    ),
    "betas with an optimizer that does not use them": (
        f"{JOB}.hyperparameters",
        {"model": "digits-net", "dataset": "digits", "optimizer": "sgd", "betas": [0.9, 0.95]},
        f"{JOB}.hyperparameters: betas is set,",
        "leave it out with sgd",
    ),
    "contradictory toleration": (
        "gpu.tolerations",
        [{"key": "a", "value": "b"}],
        "gpu.tolerations[0]",
        "operator is Equal",
    ),
    "Prometheus port out of range": (
        "gpu.node_health",
        {"prometheus": "http://prometheus:90900"},
        "gpu.node_health.prometheus",
        "optional port from 1 to 65535",
    ),
    "invalid address range": ("tenancy.network", {"egress_cidrs": ["10.1"]}, "10.1.0.0/16"),
    "floating version": ("volcano.version", "latest", "ranges are not accepted"),
    "guarantee above the capability": (
        "volcano.queues.research.guarantee",
        {"nvidia.com/gpu": 17},
        "volcano.queues.research",
        "more than capability (16)",
    ),
    "number as the value of a variable": (
        f"{JOB}.env",
        {"int": 5},
        f"{JOB}.env.int",
        "but must be a string",
    ),
    "reserved name for a priority class": (
        "volcano.priority_classes.system-training",
        {"value": 100},
        "volcano.priority_classes",
        "reserves the prefix system-",
    ),
    "CPU as a device": ("tenancy.quota.devices", {"cpu": 100}, "set tenancy.quota.cpu"),
    "device with the quota prefix": (
        "tenancy.quota.devices",
        {"requests.nvidia.com/mig-1g.10gb": 4},
        "leave out the `requests.` prefix",
    ),
    "exclusive access mode next to another": (
        "storage.claims.checkpoints.access_modes",
        ["ReadWriteMany", "ReadWriteOncePod"],
        "cannot be combined with other modes",
    ),
    "local volume without nodes": (
        "storage.volumes.data",
        {
            "capacity": "1Gi",
            "access_modes": ["ReadWriteOncePod"],
            "local": {"path": "/data", "nodes": {"kubernetes.io/hostname": []}},
        },
        "storage.volumes.data.local.nodes.kubernetes.io/hostname",
        "1 or more entries",
    ),
    "volume at a reserved path": (
        f"{JOB}.volumes.devices",
        {"path": "/dev", "scratch": "1Gi"},
        "which is reserved in every pod",
    ),
    "colon in a mount path": (
        f"{JOB}.volumes.code",
        {"path": "/code:1", "scratch": "1Gi"},
        "may not contain ':'",
    ),
    "unknown provisioner": ("storage.classes.fast", {"kind": "other"}, "requires `provisioner`"),
}


def test_shared_gpus_must_use_the_resource_name_of_the_nodes() -> None:
    values = changed("gpu.time_slicing", {"replicas": 4})
    job = values["training"]["jobs"]["digits"]
    job["gpus_per_node"] = 1
    values["tenancy"]["quota"] = {"gpus": 1}
    (found,) = problems(values)
    assert "more than gpu-platform:tenancy.quota.gpus" in found
    assert "needs 2 nvidia.com/gpu.shared" in found
    job["gpu_resource"] = "nvidia.com/gpu"
    values["tenancy"]["quota"] = {"devices": {"nvidia.com/gpu.shared": 8}}
    wrong_name, wrong_quota = sorted(problems(values), key=lambda text: "quota" in text)
    assert "offers shared GPUs as nvidia.com/gpu.shared: use that name" in wrong_name
    assert "set gpu-platform:tenancy.quota.gpus instead" in wrong_quota


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key_and_a_remedy(mistake: str) -> None:
    assert_reported(MISTAKES[mistake])


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("tenancy", "tenancy.namespace"),
        (f"{JOB}.queue", f"{JOB}.queue"),
        (f"{JOB}.hyperparameters", JOB),
        ("cluster", "cluster"),
    ],
)
def test_missing_setting_is_reported_with_its_key(path: str, key: str) -> None:
    (sentence,) = problems(without(path))
    assert sentence.startswith(f"gpu-platform:{key} ")


@pytest.mark.parametrize(("nodes", "gang_size"), [(1, "1 node x 4 GPUs"), (2, "2 nodes x 4 GPUs")])
def test_error_states_the_size_of_the_gang(nodes: int, gang_size: str) -> None:
    values = changed(f"{JOB}.nodes", nodes)
    values["tenancy"]["quota"]["gpus"] = 3
    (sentence,) = problems(values)
    assert f"{JOB}.nodes is {nodes}: the gang ({gang_size} = {4 * nodes} nvidia.com/gpu" in sentence


def test_error_states_memory_in_the_unit_of_the_setting() -> None:
    values = changed("tenancy.quota", {"memory": "100Gi"})
    (sentence,) = problems(values)
    assert "needs 128Gi memory, more than gpu-platform:tenancy.quota.memory (100Gi)" in sentence
    values["tenancy"]["quota"]["memory"] = "1500Mi"
    assert any("quota.memory (1500Mi)" in sentence for sentence in problems(values))


def test_base_configuration_is_valid() -> None:
    assert problems(good()) == []


def test_all_mistakes_are_reported_at_once() -> None:
    values = changed(f"{JOB}.nodes", 0)
    values["tenancy"]["namespace"] = "Not_A_Name"
    values["volcano"]["queues"]["research"]["weight"] = 0
    values["storage"]["claims"]["checkpoints"]["volume"] = "gone"
    values["extra"] = 1
    assert len(problems(values)) == 5


def test_a_mistake_inside_a_section_is_reported_once() -> None:
    assert len(problems(changed("volcano.queues.research.weight", 0))) == 1


def test_the_error_states_the_number_of_problems_and_that_nothing_changed() -> None:
    with pytest.raises(SettingsError) as exc_info:
        validate(changed(f"{JOB}.nodes", 0))
    assert str(exc_info.value).startswith("The configuration has 1 problem; nothing was changed.\n")


def with_login() -> dict[str, object]:
    values = changed("images.username", "robot")
    values["images"]["registry"] = "registry.example.com"
    return values


def test_registry_user_requires_a_password() -> None:
    (sentence,) = problems(with_login())
    assert sentence.startswith("gpu-platform:registry_password is missing")
    assert "pulumi config set --secret registry_password" in sentence


def test_plain_text_password_is_rejected() -> None:
    (sentence,) = problems({**with_login(), "registry_password": "hunter2"})
    assert "plain text" in sentence
    assert "hunter2" not in sentence


def test_a_secret_password_is_accepted() -> None:
    values = {**with_login(), "registry_password": "hunter2"}
    assert problems(values, frozenset({"registry_password"})) == []


def test_password_without_a_user_is_rejected() -> None:
    values = {**good(), "registry_password": "hunter2"}
    (sentence,) = problems(values, frozenset({"registry_password"}))
    assert "gpu-platform:images.username" in sentence


def test_secret_in_a_section_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"gpu-platform:training contains a secret.*env_from"):
        validate(good(), frozenset({"training"}))


@pytest.mark.parametrize("key", ["context", "kubeconfig"])
def test_rendered_stack_cannot_set_a_cluster(key: str) -> None:
    with pytest.raises(SettingsError, match=rf"render_to.*'out'.*{key}.*'staging'.*remove one"):
        validate(changed("cluster", {"render_to": "out", key: "staging"}))
