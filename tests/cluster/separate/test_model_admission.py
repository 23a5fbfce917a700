"""Attempts to serve a model that is not promoted, with a real API server; none may be admitted.

tests/engine/models/test_attempts.py has the attempts to promote or fetch another model.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from kube.promoted_models import NAME, NAMESPACE, PROMOTER
from policies.catalogue import RULES
from tests.cluster.admission import PROMOTED, SETTINGS, SPACE, Cluster
from tests.cluster.api_server import ApiServer, Manifest, Response
from tests.cluster.platform import await_
from tools.generate.policy_examples import EXAMPLES

PODS = f"/api/v1/namespaces/{SPACE}/pods"
OBJECT = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
LABELS = {"gpu-platform.dev/workload": "inference", "gpu-platform.dev/service": "digits"}
OTHER_DIGEST = "fedcba9876543210" * 4
UNKNOWN_URL = f"oci://a.b/c@sha256:{OTHER_DIGEST}"
((KEY, VALUE),) = PROMOTED["data"].items()
DIGITS = "registry.example.com/models/digits"
MODEL, OTHER_MODEL = f"{DIGITS}@sha256:{KEY}", f"{DIGITS}@sha256:{OTHER_DIGEST}"
ONLY_MODEL_RULES = {
    **{rule.name: "disabled" for rule in RULES if rule.admission and rule.topic != "models"},
    "model-signed": SETTINGS["model-signed"],
}
"""Configuration that disables the other rules, which would also deny some of the attempts."""
RIGHTS = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: serving}}
rules:
  - apiGroups: ["", apps]
    resources: [pods, pods/ephemeralcontainers, deployments]
    verbs: ["*"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: serving, namespace: {SPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: serving}}
subjects: [{{kind: User, apiGroup: rbac.authorization.k8s.io, name: serving}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: promoter, namespace: {NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {PROMOTER}}}
subjects: [{{kind: User, apiGroup: rbac.authorization.k8s.io, name: promoter}}]
"""
"""Accounts that deploy the services of a namespace and that promote models."""


def promoted() -> Manifest:
    """Return a pod that serves the promoted model."""
    spec = yaml.safe_load(EXAMPLES["model-signed"].good)
    for container in (*spec["initContainers"], *spec["containers"]):
        container |= {
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    server = spec["containers"][0]
    server["ports"] = [{"name": "http", "containerPort": 8080}]
    server["env"].append({"name": "INFERENCE_MODEL_PATH", "value": "/models/export"})
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        server[probe] = {"httpGet": {"path": "/v2/health/live", "port": "http"}}
    spec |= {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    metadata = {"name": "digits", "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def server(pod: Manifest) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def fetch(pod: Manifest) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["initContainers"][0]
    return container


def set_model(pod: Manifest, reference: str) -> None:
    fetch(pod)["command"][3] = f"oci://{reference}"


def add_volume(pod: Manifest, path: str, **source: Any) -> None:
    pod["spec"]["volumes"].append({"name": "other", **source})
    server(pod)["volumeMounts"].append({"name": "other", "mountPath": path})


def replace_model_volume(pod: Manifest, **source: Any) -> None:
    """Replace the volume that contains the model, and remove the download."""
    pod["spec"]["volumes"] = [{"name": "models", **source}]
    del pod["spec"]["initContainers"]


def mount_model_image(pod: Manifest, reference: str = MODEL) -> None:
    """Mount a model as an image volume instead of downloading it."""
    replace_model_volume(pod, image={"reference": reference, "pullPolicy": "IfNotPresent"})


def add_cache(pod: Manifest) -> None:
    """Add a cache to the download, as the stack does."""
    claim = {"claimName": "copies"}
    pod["spec"]["volumes"].append({"name": "cache", "persistentVolumeClaim": claim})
    fetch(pod)["volumeMounts"].append({"name": "cache", "mountPath": "/model-cache"})
    fetch(pod)["command"] += ["--cache=/model-cache", "--cache-bytes=1073741824"]


def add_variable(container: dict[str, Any], name: str, **stated: Any) -> None:
    container["env"].append({"name": name, **stated})


def add_sidecar(pod: Manifest, **changes: Any) -> None:
    pod["spec"]["containers"].append({**copy.deepcopy(server(pod)), "name": "other", **changes})


SECRET = {"secret": {"secretName": "other"}}
ATTEMPTS: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "another digest": (lambda pod: set_model(pod, OTHER_MODEL), "model of fetch"),
    "the digest in another repository": (
        lambda pod: set_model(pod, f"registry.example.com/models/other@sha256:{KEY}"),
        "model of fetch",
    ),
    "the digest in another registry": (
        lambda pod: set_model(pod, f"registry.example.org/models/digits@sha256:{KEY}"),
        "model of fetch",
    ),
    "a tag": (lambda pod: set_model(pod, f"{DIGITS}:production"), "model of fetch"),
    "a tag in addition to the digest": (
        lambda pod: set_model(pod, f"{DIGITS}:v1@sha256:{KEY}"),
        "model of fetch",
    ),
    "two digests": (
        lambda pod: set_model(pod, f"{DIGITS}@sha256:{KEY}@sha256:{OTHER_DIGEST}"),
        "model of fetch",
    ),
    "a variable in the reference": (
        lambda pod: (
            set_model(pod, "$(OCI_MODEL)"),
            add_variable(fetch(pod), "OCI_MODEL", value="x"),
        ),
        "model of fetch",
    ),
    "another source": (
        lambda pod: fetch(pod)["command"].__setitem__(3, "s3://models/digits"),
        "command of fetch",
    ),
    "the source as an argument": (
        lambda pod: fetch(pod).update(
            command=["python3", "-m"], args=["inference.fetch", UNKNOWN_URL, "/models/export"]
        ),
        "model of fetch",
    ),
    "two sources": (lambda pod: fetch(pod)["command"].insert(4, UNKNOWN_URL), "model of fetch"),
    "a command with several arguments in one string": (
        lambda pod: fetch(pod).update(
            command=["python3", "-m inference.fetch oci://a.b/c /models/export"]
        ),
        "command of fetch",
    ),
    "a second init container": (
        lambda pod: pod["spec"]["initContainers"].append(
            {
                **copy.deepcopy(fetch(pod)),
                "name": "other",
                "command": [
                    *fetch(pod)["command"][:3],
                    f"oci://a.b/c@sha256:{OTHER_DIGEST}",
                    "/models/export",
                ],
            }
        ),
        "model of other",
    ),
    "another image for the init container": (
        lambda pod: fetch(pod).update(image=f"registry.example.com/ml/own@sha256:{KEY}"),
        "image of fetch",
    ),
    "another image for the server": (
        lambda pod: server(pod).update(image=f"registry.example.com/ml/own@sha256:{KEY}"),
        "image of inference",
    ),
    "a server image referenced by tag": (
        lambda pod: server(pod).update(image="registry.example.com/ml/inference:1.0.0"),
        "image of inference",
    ),
    "another command": (
        lambda pod: server(pod).update(command=["python3", "-c", "serve()"]),
        "command of inference",
    ),
    "no command": (lambda pod: server(pod).pop("command"), "command of inference"),
    "additional arguments": (lambda pod: server(pod).update(args=["-c"]), "command of inference"),
    "a sidecar with another command": (
        lambda pod: add_sidecar(pod, command=["sh", "-c", "cp"]),
        "command of other",
    ),
    "a working directory that may contain modules": (
        lambda pod: server(pod).update(workingDir="/tmp"),
        "workingDir of inference",
    ),
    "a subPath": (
        lambda pod: server(pod)["volumeMounts"][0].update(subPath="other"),
        "volumeMounts of inference",
    ),
    "a subPathExpr": (
        lambda pod: server(pod)["volumeMounts"][0].update(subPathExpr="$(HOME)"),
        "volumeMounts of inference",
    ),
    "a claim": (
        lambda pod: replace_model_volume(pod, persistentVolumeClaim={"claimName": "checkpoints"}),
        "volumeMounts of inference",
    ),
    "a cache that the server mounts": (
        lambda pod: (
            add_cache(pod),
            server(pod)["volumeMounts"].append({"name": "cache", "mountPath": "/model-cache"}),
        ),
        "volumeMounts of inference",
    ),
    "a cache mounted in place of the model": (
        lambda pod: (
            add_cache(pod),
            fetch(pod)["volumeMounts"][-1].update(mountPath="/models/export"),
        ),
        "volumeMounts of fetch",
    ),
    "a subdirectory of the cache": (
        lambda pod: (add_cache(pod), fetch(pod)["volumeMounts"][-1].update(subPath="other")),
        "volumeMounts of fetch",
    ),
    "another digest with a cache": (
        lambda pod: (add_cache(pod), set_model(pod, OTHER_MODEL)),
        "model of fetch",
    ),
    "a claim attached as a block device": (
        lambda pod: (
            add_cache(pod),
            server(pod).update(
                volumeDevices=[{"name": "cache", "devicePath": "/models/export/model.safetensors"}]
            ),
        ),
        "volumeDevices of inference",
    ),
    "a ConfigMap": (
        lambda pod: replace_model_volume(pod, configMap={"name": "other"}),
        "volume models",
    ),
    "a Secret mounted in place of the model": (
        lambda pod: replace_model_volume(pod, **SECRET),
        "volumeMounts of inference",
    ),
    "an ephemeral volume": (
        lambda pod: replace_model_volume(
            pod,
            ephemeral={
                "volumeClaimTemplate": {
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    }
                }
            },
        ),
        "volume models",
    ),
    "a CSI volume": (
        lambda pod: replace_model_volume(pod, csi={"driver": "example.com"}),
        "volume models",
    ),
    "a projected volume": (
        lambda pod: replace_model_volume(
            pod, projected={"sources": [{"secret": {"name": "other"}}]}
        ),
        "volume models",
    ),
    "another image volume": (lambda pod: mount_model_image(pod, OTHER_MODEL), "model of models"),
    "an image volume referenced by tag": (
        lambda pod: mount_model_image(pod, f"{DIGITS}:production"),
        "model of models",
    ),
    "an image volume from another repository": (
        lambda pod: mount_model_image(pod, f"registry.example.com/models/other@sha256:{KEY}"),
        "model of models",
    ),
    "a subdirectory of an image volume": (
        lambda pod: (
            mount_model_image(pod),
            server(pod)["volumeMounts"][0].update(subPath="other"),
        ),
        "volumeMounts of inference",
    ),
    "an image volume mounted at another path": (
        lambda pod: (
            mount_model_image(pod),
            server(pod)["volumeMounts"][0].update(mountPath="/app"),
        ),
        "volumeMounts of inference",
    ),
    "a Secret mounted inside the model": (
        lambda pod: add_volume(pod, "/models/export/model.safetensors", **SECRET),
        "volumeMounts of inference",
    ),
    "a Secret mounted over the program": (
        lambda pod: add_volume(pod, "/app/inference", **SECRET),
        "volumeMounts of inference",
    ),
    "a mount path with dots": (
        lambda pod: add_volume(pod, "/secrets/../models", **SECRET),
        "volumeMounts of inference",
    ),
    "another model path": (
        lambda pod: server(pod)["env"][-1].update(value="/secrets/other"),
        "environment of inference",
    ),
    "a model path outside the model directory": (
        lambda pod: server(pod)["env"][-1].update(value="/models/../secrets/other"),
        "environment of inference",
    ),
    "a model path from a Secret": (
        lambda pod: server(pod)["env"].__setitem__(
            -1,
            {
                "name": "INFERENCE_MODEL_PATH",
                "valueFrom": {"secretKeyRef": {"name": "other", "key": "path"}},
            },
        ),
        "environment of inference",
    ),
    "a module search path": (
        lambda pod: add_variable(server(pod), "PYTHONPATH", value="/secrets/other"),
        "environment of inference",
    ),
    "a preloaded library": (
        lambda pod: add_variable(fetch(pod), "LD_PRELOAD", value="/secrets/other/library.so"),
        "environment of fetch",
    ),
    "a home directory that may contain modules": (
        lambda pod: server(pod)["env"][0].update(value="/secrets/other"),
        "environment of inference",
    ),
    "all keys of a Secret as variables": (
        lambda pod: server(pod).update(envFrom=[{"secretRef": {"name": "other"}}]),
        "environment of inference",
    ),
    "a probe that runs a program": (
        lambda pod: server(pod).update(livenessProbe={"exec": {"command": ["sh", "-c", "cp"]}}),
        "exec of inference",
    ),
    "a hook that runs a program": (
        lambda pod: server(pod).update(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
        "exec of inference",
    ),
    "the component label of a training pod": (
        lambda pod: (
            pod["metadata"]["labels"].update({"app.kubernetes.io/component": "training"}),
            set_model(pod, OTHER_MODEL),
        ),
        "model of fetch",
    ),
}


def deployment(pod: Manifest) -> Manifest:
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": LABELS}, "template": template}
    metadata = {"name": "digits"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def cluster(admission: Cluster) -> Iterator[Cluster]:
    """The cluster with the model policies, removed later because they deny other tests' models."""
    admission.install("deny", ONLY_MODEL_RULES)
    file = admission.platform.checkout / "rights.yaml"
    file.write_text(RIGHTS)
    admission.apply(file)
    # The API server uses new rights and parameters only after its watches have reported them.
    await_admission(admission.api.as_user("serving"), promoted(), True)
    yield admission
    admission.uninstall()


def model_denial(answer: Response) -> str:
    """Return the part of the denial that concerns the model."""
    assert "model-signed: " in answer.denied, answer.body
    return answer.denied.partition("model-signed: ")[2].partition(": Inference serves only")[0]


def test_promoted_model_is_admitted(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    image_volume, from_cache = promoted(), promoted()
    mount_model_image(image_volume)
    add_cache(from_cache)
    for pod in (promoted(), image_volume, from_cache):
        for manifest in (pod, deployment(pod)):
            answer = api.create(manifest, SPACE)
            assert answer.status == 201, answer.body


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("build", [copy.deepcopy, deployment], ids=["pod", "template"])
def test_pod_that_serves_anything_else_is_denied(
    cluster: Cluster, attempt: str, build: Callable[[Manifest], Manifest]
) -> None:
    change, reason = ATTEMPTS[attempt]
    pod = promoted()
    change(pod)
    assert reason in model_denial(cluster.api.as_user("serving").create(build(pod), SPACE))


def test_existing_pod_cannot_be_relabeled_as_a_server(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    pod = promoted()
    pod["metadata"]["labels"] = {}
    server(pod)["command"] = ["python3", "-c", "serve()"]
    try:
        assert api.create(pod, SPACE, dry_run=False).status == 201
        labeled = api.patch(f"{PODS}/digits", {"metadata": {"labels": LABELS}})
        assert model_denial(labeled) == "command of inference"
    finally:
        cluster.api.delete(PODS)


def test_debug_container_in_a_server_is_denied(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    try:
        assert api.create(promoted(), SPACE, dry_run=False).status == 201
        debugger = {"name": "debugger", "image": server(promoted())["image"], "command": ["sh"]}
        added = {"spec": {"ephemeralContainers": [debugger]}}
        answer = api.patch(f"{PODS}/digits/ephemeralcontainers", added)
        assert "command of debugger" in model_denial(answer)
    finally:
        cluster.api.delete(PODS)


def test_account_that_deploys_services_cannot_promote_models(cluster: Cluster) -> None:
    entry = {"data": {OTHER_DIGEST: VALUE.replace(KEY, OTHER_DIGEST)}}
    api = cluster.api.as_user("serving")
    assert "cannot patch resource" in api.patch(OBJECT, entry).denied
    assert "cannot delete resource" in api.delete(OBJECT).denied
    moved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, **entry}
    assert "cannot create resource" in api.create(moved, SPACE).denied


@pytest.mark.parametrize(
    "entry",
    [
        OTHER_MODEL,
        VALUE,
        VALUE.replace(KEY, OTHER_DIGEST, 1).replace("policies=passed", "policies=refused"),
        VALUE.replace(KEY, OTHER_DIGEST, 1).replace(" metrics=accuracy:0.98", " metrics="),
    ],
)
def test_promoters_cannot_add_an_entry_without_a_lineage(cluster: Cluster, entry: str) -> None:
    denied = cluster.api.as_user("promoter").patch(OBJECT, {"data": {OTHER_DIGEST: entry}}).denied
    assert f"model-lineage-complete: {OTHER_DIGEST}" in denied


def test_model_is_admitted_from_its_promotion_until_its_withdrawal(cluster: Cluster) -> None:
    promoter, serving = (cluster.api.as_user(name) for name in ("promoter", "serving"))
    pod = promoted()
    set_model(pod, OTHER_MODEL)
    entry = VALUE.replace(KEY, OTHER_DIGEST, 1)
    assert promoter.patch(OBJECT, {"data": {OTHER_DIGEST: entry}}).status == 200
    await_admission(serving, pod, True)
    assert promoter.patch(OBJECT, {"data": {OTHER_DIGEST: None}}).status == 200
    await_admission(serving, pod, False)


def await_admission(serving: ApiServer, pod: Manifest, expected: bool) -> None:
    """Wait until the policies use the changed parameter object."""
    await_(lambda: (serving.create(pod, SPACE).status == 201) is expected, "the parameters")


def test_no_serving_pod_is_admitted_without_the_parameter_object(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    other = promoted()
    other["metadata"]["labels"] = {}
    try:
        assert cluster.api.delete(OBJECT).status == 200
        await_admission(api, promoted(), False)
        await_admission(api, other, False)
    finally:
        cluster.install("deny", ONLY_MODEL_RULES)
    await_admission(api, promoted(), True)
    await_admission(api, other, True)
