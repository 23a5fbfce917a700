"""Known ways around the rules, each with the rule that must refuse it."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.case import CONTEXT, LIMITS, MAIN, POD, REQUESTS
from tests.policies.harness import REMOVED, Manifest, changed, judge

GPU = {"nvidia.com/gpu": 1}
GPU_REQUEST = f"{REQUESTS}/nvidia.com~gpu"
GPU_LIMIT = f"{LIMITS}/nvidia.com~gpu"
TOLERATION = f"{POD}/tolerations/0"
MEDIUM, SIZE = f"{POD}/volumes/0/emptyDir/medium", f"{POD}/volumes/0/emptyDir/sizeLimit"
ADDED, DROPPED = f"{CONTEXT}/capabilities/add", f"{CONTEXT}/capabilities/drop"
ESCALATION = f"{CONTEXT}/allowPrivilegeEscalation"
COMPONENT = "spec/tasks/0/template/metadata/labels/app.kubernetes.io~component"
BAD_CONTAINER = {"name": "evil", "image": "evil", "resources": {"requests": GPU}}


def job(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.volcano_job(), *edits)


def custom(spec: Any, kind: str = "Unheard", version: str = "example.com/v1") -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def shm_volume(**source: Any) -> tuple[tuple[str, Any], ...]:
    return ((f"{POD}/volumes/0", {"name": "shm", **source}),)


def shm_mount(**mount: Any) -> tuple[str, Any]:
    return (f"{MAIN}/volumeMounts/0", {"name": "shm", **mount})


INIT = (f"{POD}/initContainers", [BAD_CONTAINER])
SIDECAR = (f"{POD}/initContainers", [{**BAD_CONTAINER, "restartPolicy": "Always"}])
EPHEMERAL = (f"{POD}/ephemeralContainers", [BAD_CONTAINER])
HIDDEN = {"containers": [BAD_CONTAINER]}
TEMPLATE = {"template": {"spec": HIDDEN}}

POD_LIST = {**custom({}, "PodList", "v1"), "items": [{"spec": HIDDEN}]}
CRON_JOB = custom({"jobTemplate": {"spec": TEMPLATE}}, "CronJob", "batch/v1")
SECOND_MEMORY = {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}

EVASIONS: list[tuple[str, str, Manifest]] = [
    # where containers hide
    ("an init container", "no-privilege-escalation", job(INIT)),
    ("an init container's image", "image-tag-fixed", job(INIT)),
    ("an init container's GPU", "gpu-requests-equal-limits", job(INIT)),
    ("a sidecar", "capabilities-dropped", job(SIDECAR)),
    ("an ephemeral container", "no-privilege-escalation", job(EPHEMERAL)),
    ("the second container", "image-tag-fixed", job((f"{POD}/containers/1", BAD_CONTAINER))),
    ("a custom resource", "image-tag-fixed", custom(TEMPLATE)),
    ("a kind in odd letters", "gpu-requests-equal-limits", custom(TEMPLATE, "pYTORCHjOB")),
    ("templates nested twice", "image-tag-fixed", custom({"template": {"spec": TEMPLATE}})),
    (
        "a list of pods",
        "image-tag-fixed",
        POD_LIST,
    ),
    (
        "a cron job",
        "image-tag-fixed",
        CRON_JOB,
    ),
    ("a server-side patch", "image-tag-fixed", custom(TEMPLATE, "DeploymentPatch", "apps/v1")),
    (
        "the trainer of a TrainJob",
        "image-tag-fixed",
        custom({"trainer": {"image": "a:latest"}}, "TrainJob", "trainer.kubeflow.org/v1alpha1"),
    ),
    (
        "an image that is a volume",
        "image-tag-fixed",
        job((f"{POD}/volumes/2", {"name": "i", "image": {"reference": "models:latest"}})),
    ),
    # how many GPUs
    ("thousandths", "gpu-counts-whole", job((GPU_LIMIT, "1000m"))),
    ("an exponent", "gpu-counts-whole", job((GPU_LIMIT, "1e3"))),
    ("zero", "gpu-counts-whole", job((GPU_LIMIT, 0))),
    ("zero without a request", "gpu-counts-whole", job((GPU_LIMIT, 0), (GPU_REQUEST, REMOVED))),
    ("zero as text", "gpu-counts-whole", job((GPU_LIMIT, "0"))),
    ("less than nothing", "gpu-counts-whole", job((GPU_LIMIT, -1))),
    ("half of one", "gpu-counts-whole", job((GPU_LIMIT, 0.5))),
    ("true", "gpu-counts-whole", job((GPU_LIMIT, True))),
    ("a list", "gpu-counts-whole", job((GPU_LIMIT, [1]))),
    ("white space", "gpu-counts-whole", job((GPU_LIMIT, " 1"))),
    ("a binary suffix", "gpu-counts-whole", job((GPU_LIMIT, "1Ki"))),
    ("an enormous number", "gpu-counts-whole", job((GPU_LIMIT, "9" * 5000))),
    ("a slice of a GPU", "gpu-counts-whole", job((f"{LIMITS}/nvidia.com~mig-1g.10gb", "0.5"))),
    ("another vendor", "gpu-requests-equal-limits", job((f"{REQUESTS}/amd.com~gpu", 1))),
    ("a limit of null", "gpu-requests-equal-limits", job((GPU_LIMIT, None))),
    (
        "a request in other units",
        "gpu-requests-equal-limits",
        job((GPU_REQUEST, "2000m")),
    ),
    ("limits that are a list", "manifest-readable", job((f"{MAIN}/resources/limits", [GPU]))),
    (
        "a custom resource that calls itself a patch",
        "run-as-non-root",
        custom(TEMPLATE, "WorkloadPatch"),
    ),
    ("replicas as a word", "manifest-readable", job(("spec/tasks/0/replicas", "two"))),
    ("a kind that looks like a chart", "image-tag-fixed", custom(TEMPLATE, "X", "yaml.org/v1")),
    # memory and CPU
    ("memory of nothing", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "0"))),
    ("memory below nothing", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "-4Gi"))),
    ("memory that is a word", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "plenty"))),
    ("memory that is null", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", None))),
    ("a thousandth less memory", "gpu-memory-guaranteed", job((f"{REQUESTS}/memory", "4095.9Mi"))),
    ("no CPU, spelled out", "gpu-cpu-requested", job((f"{REQUESTS}/cpu", "0m"))),
    # tolerations
    (
        "a toleration of another effect",
        "gpu-toleration",
        job((f"{TOLERATION}/effect", "NoExecute")),
    ),
    ("a toleration of another key", "gpu-toleration", job((f"{TOLERATION}/key", "gpu"))),
    ("a toleration that is a word", "gpu-toleration", job((f"{POD}/tolerations", ["all"]))),
    # shared memory
    ("a mount beside it", "shm-mounted", job(shm_mount(mountPath="/dev/shmem"))),
    ("a mount below it", "shm-mounted", job(shm_mount(mountPath="/dev/shm/torch"))),
    ("a subPath", "shm-mounted", job(shm_mount(mountPath="/dev/shm", subPath="x"))),
    ("a subPathExpr", "shm-mounted", job(shm_mount(mountPath="/dev/shm", subPathExpr="$(X)"))),
    (
        "a trailing slash over a disk",
        "shm-bounded-memory",
        job(shm_mount(mountPath="/dev/shm/"), *shm_volume(emptyDir={})),
    ),
    (
        "dots and slashes over a disk",
        "shm-bounded-memory",
        job(shm_mount(mountPath="//dev/./x/../shm"), *shm_volume(emptyDir={})),
    ),
    (
        "a relative path over a disk",
        "shm-bounded-memory",
        job(shm_mount(mountPath="dev/shm"), *shm_volume(emptyDir={})),
    ),
    ("an emptyDir of null", "shm-bounded-memory", job(*shm_volume(emptyDir=None))),
    ("a claim", "shm-bounded-memory", job(*shm_volume(persistentVolumeClaim={"claimName": "a"}))),
    ("no such volume", "shm-bounded-memory", job(shm_mount(mountPath="/dev/shm", name="none"))),
    (
        "medium in small letters",
        "shm-bounded-memory",
        job((MEDIUM, "memory")),
    ),
    ("a size of nothing", "shm-bounded-memory", job((SIZE, "0"))),
    (
        "a size in bytes",
        "shm-fits-memory",
        job((SIZE, 4294967296)),
    ),
    (
        "a size as an exponent",
        "shm-fits-memory",
        job((SIZE, "4e9")),
    ),
    (
        "two volumes that fit alone",
        "shm-fits-memory",
        job(
            (SIZE, "2Gi"),
            (
                f"{POD}/volumes/1",
                {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            ),
            (f"{MAIN}/volumeMounts/1", {"name": "b", "mountPath": "/cache"}),
        ),
    ),
    (
        "the node's, by its other name",
        "shm-not-from-host",
        job(*shm_volume(hostPath={"path": "/run/shm"})),
    ),
    (
        "the node's, with dots",
        "shm-not-from-host",
        job(*shm_volume(hostPath={"path": "/dev/../dev/shm/"})),
    ),
    # scheduling
    ("a task that leaves Volcano", "training-scheduler", job((f"{POD}/schedulerName", "default"))),
    ("a queue of spaces", "training-queue-named", job(("spec/queue", "  "))),
    ("a queue that is a number", "training-queue-named", job(("spec/queue", 7))),
    ("a gang of one", "training-gang-whole", job(("spec/minAvailable", 1))),
    ("a gang of none", "training-gang-whole", job(("spec/minAvailable", 0))),
    ("a gang that is a word", "training-gang-whole", job(("spec/minAvailable", "all"))),
    ("zero retries, which are three", "training-retries-bounded", job(("spec/maxRetry", 0))),
    ("retries without number", "training-retries-bounded", job(("spec/maxRetry", None))),
    (
        "training kept alive by a Deployment",
        "training-retries-bounded",
        changed(
            manifests.deployment(),
            ("spec/template/metadata/labels/app.kubernetes.io~component", "training"),
        ),
    ),
    (
        "a Volcano Job labelled inference",
        "training-queue-named",
        job(
            (COMPONENT, "inference"),
            ("spec/queue", ""),
        ),
    ),
    # images
    ("latest in capitals", "image-tag-fixed", job((f"{MAIN}/image", "a/b:LATEST"))),
    ("a registry's port for a tag", "image-tag-fixed", job((f"{MAIN}/image", "registry:5000/b"))),
    ("an empty tag", "image-tag-fixed", job((f"{MAIN}/image", "a/b:"))),
    ("latest and half a digest", "image-tag-fixed", job((f"{MAIN}/image", "a:latest@sha256:00"))),
    ("an image that is a number", "image-tag-fixed", job((f"{MAIN}/image", 1))),
    # security
    ("a container that undoes the pod", "run-as-non-root", job((f"{CONTEXT}/runAsNonRoot", False))),
    ("root by number", "run-as-non-root", job((f"{POD}/securityContext/runAsUser", 0))),
    ("root as text", "run-as-non-root", job((f"{CONTEXT}/runAsUser", "0"))),
    (
        "false as text",
        "no-privilege-escalation",
        job((ESCALATION, "false")),
    ),
    ("privileged as text", "not-privileged", job((f"{CONTEXT}/privileged", "true"))),
    ("Windows' privileges", "not-privileged", job((f"{CONTEXT}/windowsOptions/hostProcess", True))),
    ("an unmasked /proc", "not-privileged", job((f"{CONTEXT}/procMount", "Unmasked"))),
    (
        "one capability dropped",
        "capabilities-dropped",
        job((DROPPED, ["NET_RAW"])),
    ),
    ("one added back", "capabilities-dropped", job((ADDED, ["SYS_ADMIN"]))),
    ("all added back", "capabilities-dropped", job((ADDED, ["ALL"]))),
    (
        "added with its prefix",
        "capabilities-dropped",
        job((ADDED, ["CAP_IPC_LOCK"])),
    ),
    ("added as a word", "capabilities-dropped", job((ADDED, "SYS_ADMIN"))),
    ("hostPID as text", "no-host-namespaces", job((f"{POD}/hostPID", "true"))),
    ("an empty hostPath", "no-host-path", job((f"{POD}/volumes/2", {"name": "h", "hostPath": {}}))),
    (
        "a secret by its look",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "X", "value": "hf_" + "a" * 30})),
    ),
    (
        "a password in an address",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "DB", "value": "postgres://me:pw@db/x"})),
    ),
    (
        "a password that is a number",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "dbPassword", "value": 1234})),
    ),
    (
        "a balancer of another kind",
        "service-not-public",
        changed(manifests.service(), ("spec/externalIPs", ["192.0.2.1"])),
    ),
    # inference
    (
        "a probe of nothing",
        "inference-probes",
        changed(manifests.deployment(), ("spec/template/spec/containers/0/readinessProbe", {})),
    ),
    (
        "probes on the sidecar only",
        "inference-probes",
        changed(
            manifests.deployment(),
            ("spec/template/spec/containers/0/livenessProbe", REMOVED),
            (
                "spec/template/spec/containers/1",
                {**manifests.container("side", None), "livenessProbe": manifests.probe()},
            ),
        ),
    ),
]


@pytest.mark.parametrize(("way", "rule", "manifest"), EVASIONS, ids=[case[0] for case in EVASIONS])
def test_an_evasion_is_noticed(way: str, rule: str, manifest: Manifest) -> None:
    messages = judge(rule, manifest)
    assert messages
    assert all("itself failed" not in message for message in messages)


def test_a_missing_shared_memory_is_not_hidden_by_ten_thousand_mounts() -> None:
    mounts = [{"name": f"m{i}", "mountPath": f"/m/{i}"} for i in range(10_000)]
    assert judge("shm-mounted", job((f"{MAIN}/volumeMounts", mounts)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "512"),
        ("HF_TOKEN", "$(FROM_A_SECRET)"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("DATABASE", "postgres://db/x"),
    ],
)
def test_what_only_sounds_secret_passes(name: str, value: str) -> None:
    env = [{"name": name, "value": value}]
    assert judge("no-literal-secrets", job((f"{MAIN}/env", env))) == []


def test_the_value_of_a_secret_is_never_shown() -> None:
    env = [{"name": "PASSWORD", "value": "correct horse"}]
    (message,) = judge("no-literal-secrets", job((f"{MAIN}/env", env)))
    assert "correct horse" not in message
