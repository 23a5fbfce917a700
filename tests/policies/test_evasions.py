"""Known evasions of the rules, each with the rule that must reject it."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import (
    CONTEXT,
    LIMITS,
    MAIN,
    POD,
    REMOVED,
    REQUESTS,
    Manifest,
    changed,
    evaluate_rule,
)

GPU = {"nvidia.com/gpu": 1}
GPU_REQUEST = f"{REQUESTS}/nvidia.com~gpu"
GPU_LIMIT = f"{LIMITS}/nvidia.com~gpu"
TOLERATION = f"{POD}/tolerations/0"
MEDIUM, SIZE = f"{POD}/volumes/0/emptyDir/medium", f"{POD}/volumes/0/emptyDir/sizeLimit"
ADDED, DROPPED = f"{CONTEXT}/capabilities/add", f"{CONTEXT}/capabilities/drop"
ESCALATION = f"{CONTEXT}/allowPrivilegeEscalation"
COMPONENT = "spec/tasks/0/template/metadata/labels/app.kubernetes.io~component"
CACHE = {"name": "b", "mountPath": "/cache"}
TOKEN = {"serviceAccountToken": {"path": "token"}}
BAD_CONTAINER = {"name": "evil", "image": "evil", "resources": {"requests": GPU}}


def job(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.volcano_job(), *edits)


def custom(spec: Any, kind: str = "Unheard", version: str = "example.com/v1") -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def cluster_role(**fields: Any) -> Manifest:
    return {**custom({}, "ClusterRole", "rbac.authorization.k8s.io/v1"), **fields}


def shm_volume(**source: Any) -> tuple[tuple[str, Any], ...]:
    return ((f"{POD}/volumes/0", {"name": "shm", **source}),)


def shm_mount(**mount: Any) -> tuple[str, Any]:
    return (f"{MAIN}/volumeMounts/0", {"name": "shm", **mount})


READS_SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": [[], "get"]}
BOOTSTRAPPING = "kubernetes.io/bootstrapping"
EXPRESSIONS = [{"key": key, "operator": "Exists"} for key in ([], BOOTSTRAPPING)]
INIT = (f"{POD}/initContainers", [BAD_CONTAINER])
SIDECAR = (f"{POD}/initContainers", [{**BAD_CONTAINER, "restartPolicy": "Always"}])
EPHEMERAL = (f"{POD}/ephemeralContainers", [BAD_CONTAINER])
HIDDEN = {"containers": [BAD_CONTAINER]}
TEMPLATE = {"template": {"spec": HIDDEN}}

POD_LIST = {**custom({}, "PodList", "v1"), "items": [{"spec": HIDDEN}]}
CRON_JOB = custom({"jobTemplate": {"spec": TEMPLATE}}, "CronJob", "batch/v1")

EVASIONS: list[tuple[str, str, Manifest]] = [
    # hidden containers
    ("an init container", "no-privilege-escalation", job(INIT)),
    ("an init container's image", "image-tag-fixed", job(INIT)),
    ("an init container's GPU", "gpu-requests-equal-limits", job(INIT)),
    ("a sidecar", "capabilities-dropped", job(SIDECAR)),
    ("an ephemeral container", "no-privilege-escalation", job(EPHEMERAL)),
    ("the second container", "image-tag-fixed", job((f"{POD}/containers/1", BAD_CONTAINER))),
    ("a custom resource", "image-tag-fixed", custom(TEMPLATE)),
    ("a kind in mixed-case letters", "gpu-requests-equal-limits", custom(TEMPLATE, "pYTORCHjOB")),
    ("templates nested twice", "image-tag-fixed", custom({"template": {"spec": TEMPLATE}})),
    (
        "a PodList",
        "image-tag-fixed",
        POD_LIST,
    ),
    (
        "a CronJob",
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
        "an image volume",
        "image-tag-fixed",
        job((f"{POD}/volumes/2", {"name": "i", "image": {"reference": "models:latest"}})),
    ),
    # GPU counts
    ("thousandths", "gpu-counts-whole", job((GPU_LIMIT, "1000m"))),
    ("an exponent", "gpu-counts-whole", job((GPU_LIMIT, "1e3"))),
    ("zero", "gpu-counts-whole", job((GPU_LIMIT, 0))),
    ("zero without a request", "gpu-counts-whole", job((GPU_LIMIT, 0), (GPU_REQUEST, REMOVED))),
    ("zero as text", "gpu-counts-whole", job((GPU_LIMIT, "0"))),
    ("a negative number", "gpu-counts-whole", job((GPU_LIMIT, -1))),
    ("half a GPU", "gpu-counts-whole", job((GPU_LIMIT, 0.5))),
    ("true", "gpu-counts-whole", job((GPU_LIMIT, True))),
    ("a list", "gpu-counts-whole", job((GPU_LIMIT, [1]))),
    ("white space", "gpu-counts-whole", job((GPU_LIMIT, " 1"))),
    ("a binary suffix", "gpu-counts-whole", job((GPU_LIMIT, "1Ki"))),
    ("an enormous number", "gpu-counts-whole", job((GPU_LIMIT, "9" * 5000))),
    ("half a MIG device", "gpu-counts-whole", job((f"{LIMITS}/nvidia.com~mig-1g.10gb", "0.5"))),
    ("another vendor", "gpu-requests-equal-limits", job((f"{REQUESTS}/amd.com~gpu", 1))),
    ("a null limit", "gpu-requests-equal-limits", job((GPU_LIMIT, None))),
    (
        "a request in a different unit",
        "gpu-requests-equal-limits",
        job((GPU_REQUEST, "2000m")),
    ),
    ("limits as a list", "manifest-readable", job((f"{MAIN}/resources/limits", [GPU]))),
    (
        "a custom resource whose kind ends in Patch",
        "run-as-non-root",
        custom(TEMPLATE, "WorkloadPatch"),
    ),
    ("replicas as a string", "manifest-readable", job(("spec/tasks/0/replicas", "two"))),
    (
        "a kind whose group looks like a chart",
        "image-tag-fixed",
        custom(TEMPLATE, "X", "yaml.org/v1"),
    ),
    # memory and CPU
    ("zero memory", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "0"))),
    ("negative memory", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "-4Gi"))),
    ("memory as a word", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", "plenty"))),
    ("null memory", "gpu-memory-guaranteed", job((f"{LIMITS}/memory", None))),
    (
        "a slightly smaller memory request",
        "gpu-memory-guaranteed",
        job((f"{REQUESTS}/memory", "4095.9Mi")),
    ),
    (
        "one byte",
        "gpu-memory-guaranteed",
        job(*((f"{at}/memory", "1") for at in (LIMITS, REQUESTS))),
    ),
    ("zero CPU in millicores", "gpu-cpu-requested", job((f"{REQUESTS}/cpu", "0m"))),
    ("one millicore", "gpu-cpu-requested", job((f"{REQUESTS}/cpu", "1m"))),
    # tolerations
    (
        "a toleration with another effect",
        "gpu-toleration",
        job((f"{TOLERATION}/effect", "NoExecute")),
    ),
    ("a toleration with another key", "gpu-toleration", job((f"{TOLERATION}/key", "gpu"))),
    ("a toleration as a string", "gpu-toleration", job((f"{POD}/tolerations", ["all"]))),
    # shared memory
    ("a mount next to /dev/shm", "shm-mounted", job(shm_mount(mountPath="/dev/shmem"))),
    ("a mount below /dev/shm", "shm-mounted", job(shm_mount(mountPath="/dev/shm/torch"))),
    ("a subPath", "shm-mounted", job(shm_mount(mountPath="/dev/shm", subPath="x"))),
    ("a subPathExpr", "shm-mounted", job(shm_mount(mountPath="/dev/shm", subPathExpr="$(X)"))),
    (
        "a disk mounted at a path with a trailing slash",
        "shm-bounded-memory",
        job(shm_mount(mountPath="/dev/shm/"), *shm_volume(emptyDir={})),
    ),
    (
        "a disk mounted at a path with dots and slashes",
        "shm-bounded-memory",
        job(shm_mount(mountPath="//dev/./x/../shm"), *shm_volume(emptyDir={})),
    ),
    (
        "a disk mounted at a relative path",
        "shm-bounded-memory",
        job(shm_mount(mountPath="dev/shm"), *shm_volume(emptyDir={})),
    ),
    ("a null emptyDir", "shm-bounded-memory", job(*shm_volume(emptyDir=None))),
    ("a claim", "shm-bounded-memory", job(*shm_volume(persistentVolumeClaim={"claimName": "a"}))),
    (
        "a mount of a missing volume",
        "shm-bounded-memory",
        job(shm_mount(mountPath="/dev/shm", name="none")),
    ),
    (
        "a lower-case medium",
        "shm-bounded-memory",
        job((MEDIUM, "memory")),
    ),
    ("a size of zero", "shm-bounded-memory", job((SIZE, "0"))),
    (
        "a size in bytes",
        "shm-fits-memory",
        job((SIZE, 4294967296)),
    ),
    (
        "a size with an exponent",
        "shm-fits-memory",
        job((SIZE, "4e9")),
    ),
    (
        "two volumes that only fit separately",
        "shm-fits-memory",
        job(
            (SIZE, "2Gi"),
            (
                f"{POD}/volumes/1",
                {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            ),
            (f"{MAIN}/volumeMounts/1", CACHE),
        ),
    ),
    (
        "memory volumes that only fit without the limit of the pod",
        "shm-fits-memory",
        job(
            (SIZE, "3Gi"),
            (
                f"{POD}/volumes/1",
                {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}},
            ),
            (f"{MAIN}/volumeMounts/1", REMOVED),
            (f"{POD}/containers/1", {**manifests.container("b", None), "volumeMounts": [CACHE]}),
            (f"{POD}/resources/limits/memory", "4Gi"),
        ),
    ),
    (
        "a memory volume of an init container without a limit",
        "shm-fits-memory",
        job(
            (
                f"{POD}/volumes/1",
                {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "4Ti"}},
            ),
            (f"{MAIN}/volumeMounts/1", REMOVED),
            (f"{POD}/initContainers", [{"name": "a", "image": "a:1", "volumeMounts": [CACHE]}]),
        ),
    ),
    (
        "a token in a projected volume",
        "no-service-account-token",
        job((f"{POD}/volumes/1", {"name": "t", "projected": {"sources": [TOKEN]}})),
    ),
    ("a projected volume", "shm-bounded-memory", job(*shm_volume(projected={"sources": []}))),
    (
        "the node's /dev",
        "shm-not-from-host",
        job(
            (f"{POD}/volumes/1", {"name": "dev", "hostPath": {"path": "/dev"}}),
            (f"{MAIN}/volumeMounts/1", {"name": "dev", "mountPath": "/dev"}),
        ),
    ),
    (
        "the node's /dev/shm through its alias",
        "shm-not-from-host",
        job(*shm_volume(hostPath={"path": "/run/shm"})),
    ),
    (
        "the node's /dev/shm through a path with dots",
        "shm-not-from-host",
        job(*shm_volume(hostPath={"path": "/dev/../dev/shm/"})),
    ),
    # scheduling
    (
        "a task with another scheduler",
        "training-scheduler",
        job((f"{POD}/schedulerName", "default")),
    ),
    ("a queue name with only spaces", "training-queue-named", job(("spec/queue", "  "))),
    ("a queue name as a number", "training-queue-named", job(("spec/queue", 7))),
    ("a gang minimum of one", "training-gang-whole", job(("spec/minAvailable", 1))),
    ("a gang minimum of zero", "training-gang-whole", job(("spec/minAvailable", 0))),
    ("a gang minimum as a string", "training-gang-whole", job(("spec/minAvailable", "all"))),
    (
        "zero retries, which Volcano treats as three",
        "training-retries-bounded",
        job(("spec/maxRetry", 0)),
    ),
    ("null retries", "training-retries-bounded", job(("spec/maxRetry", None))),
    (
        "training kept alive by a Deployment",
        "training-retries-bounded",
        changed(
            manifests.deployment(),
            ("spec/template/metadata/labels/app.kubernetes.io~component", "training"),
        ),
    ),
    (
        "a Volcano Job labeled as inference",
        "training-queue-named",
        job(
            (COMPONENT, "inference"),
            ("spec/queue", ""),
        ),
    ),
    # images
    ("an upper-case latest tag", "image-tag-fixed", job((f"{MAIN}/image", "a/b:LATEST"))),
    (
        "a registry port instead of a tag",
        "image-tag-fixed",
        job((f"{MAIN}/image", "registry:5000/b")),
    ),
    ("an empty tag", "image-tag-fixed", job((f"{MAIN}/image", "a/b:"))),
    (
        "a latest tag with a truncated digest",
        "image-tag-fixed",
        job((f"{MAIN}/image", "a:latest@sha256:00")),
    ),
    ("an image as a number", "image-tag-fixed", job((f"{MAIN}/image", 1))),
    # security
    (
        "a container that overrides the pod's runAsNonRoot",
        "run-as-non-root",
        job((f"{CONTEXT}/runAsNonRoot", False)),
    ),
    ("root by user ID", "run-as-non-root", job((f"{POD}/securityContext/runAsUser", 0))),
    ("the root user ID as a string", "run-as-non-root", job((f"{CONTEXT}/runAsUser", "0"))),
    (
        "false as a string",
        "no-privilege-escalation",
        job((ESCALATION, "false")),
    ),
    ("privileged as a string", "not-privileged", job((f"{CONTEXT}/privileged", "true"))),
    (
        "a Windows HostProcess container",
        "not-privileged",
        job((f"{CONTEXT}/windowsOptions/hostProcess", True)),
    ),
    ("an unmasked /proc", "not-privileged", job((f"{CONTEXT}/procMount", "Unmasked"))),
    (
        "only one capability dropped",
        "capabilities-dropped",
        job((DROPPED, ["NET_RAW"])),
    ),
    ("one capability added back", "capabilities-dropped", job((ADDED, ["SYS_ADMIN"]))),
    ("all capabilities added back", "capabilities-dropped", job((ADDED, ["ALL"]))),
    (
        "a capability added with its prefix",
        "capabilities-dropped",
        job((ADDED, ["CAP_IPC_LOCK"])),
    ),
    ("added capabilities as a string", "capabilities-dropped", job((ADDED, "SYS_ADMIN"))),
    ("hostPID as a string", "no-host-namespaces", job((f"{POD}/hostPID", "true"))),
    ("an empty hostPath", "no-host-path", job((f"{POD}/volumes/2", {"name": "h", "hostPath": {}}))),
    (
        "a value that looks like a secret",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "X", "value": "hf_" + "a" * 30})),
    ),
    (
        "a password in a URL",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "DB", "value": "postgres://me:pw@db/x"})),
    ),
    (
        "a password as a number",
        "no-literal-secrets",
        job((f"{MAIN}/env/0", {"name": "dbPassword", "value": 1234})),
    ),
    (
        "a load balancer of another kind",
        "service-not-public",
        changed(manifests.service(), ("spec/externalIPs", ["192.0.2.1"])),
    ),
    # inference
    (
        "an empty probe",
        "inference-probes",
        changed(manifests.deployment(), ("spec/template/spec/containers/0/readinessProbe", {})),
    ),
    # values of the wrong type
    (
        "a mount whose name is a list",
        "checkpoints-kept",
        job(
            (f"{POD}/volumes", [{"name": "a", "emptyDir": {}}]),
            (f"{MAIN}/volumeMounts", [{"name": n, "mountPath": "/checkpoints"} for n in ("a", [])]),
        ),
    ),
    ("a verb that is a list", "rbac-least-privilege", cluster_role(rules=[READS_SECRETS])),
    (
        "a label key that is a list",
        "rbac-least-privilege",
        cluster_role(aggregationRule={"clusterRoleSelectors": [{"matchExpressions": EXPRESSIONS}]}),
    ),
    (
        "probes only on the sidecar",
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


def test_evasions_are_reported_by_their_rules() -> None:
    for evasion, rule, manifest in EVASIONS:
        messages = evaluate_rule(rule, manifest)
        assert messages, evasion
        assert all("itself failed" not in message for message in messages), evasion


def test_missing_shared_memory_is_found_among_ten_thousand_mounts() -> None:
    mounts = [{"name": f"m{i}", "mountPath": f"/m/{i}"} for i in range(10_000)]
    assert evaluate_rule("shm-mounted", job((f"{MAIN}/volumeMounts", mounts)))


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
def test_harmless_values_with_secret_like_names_are_accepted(name: str, value: str) -> None:
    env = [{"name": name, "value": value}]
    assert evaluate_rule("no-literal-secrets", job((f"{MAIN}/env", env))) == []


def test_messages_never_contain_the_value_of_a_secret() -> None:
    env = [{"name": "PASSWORD", "value": "correct horse"}]
    (message,) = evaluate_rule("no-literal-secrets", job((f"{MAIN}/env", env)))
    assert "correct horse" not in message
