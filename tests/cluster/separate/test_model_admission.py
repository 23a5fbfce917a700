"""Attempts to serve a model that is not promoted, with a real API server; none may be admitted.

tests/gpu_platform/models/test_attempts.py has the attempts to promote or fetch another model.
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
OTHER = "fedcba9876543210" * 4
UNKNOWN_URL = f"oci://a.b/c@sha256:{OTHER}"
((KEY, VALUE),) = PROMOTED["data"].items()
MODEL = f"registry.example.com/models/digits@sha256:{KEY}"
ONLY = {
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
            "resources": {
                "requests": {"cpu": "1", "memory": "1Gi"},
                "limits": {"memory": "1Gi"},
            },
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


def model(pod: Manifest, reference: str) -> None:
    fetch(pod)["command"][3] = f"oci://{reference}"


def volume(pod: Manifest, path: str, **source: Any) -> None:
    pod["spec"]["volumes"].append({"name": "other", **source})
    server(pod)["volumeMounts"].append({"name": "other", "mountPath": path})


def instead(pod: Manifest, **source: Any) -> None:
    """Replace the volume with the model."""
    pod["spec"]["volumes"] = [{"name": "models", **source}]
    del pod["spec"]["initContainers"]


def mounted(pod: Manifest, reference: str = MODEL) -> None:
    """Mount a model as an image volume instead of the download."""
    instead(pod, image={"reference": reference, "pullPolicy": "IfNotPresent"})


def cached(pod: Manifest) -> None:
    """Let the download use a cache, as the stack does."""
    claim = {"claimName": "copies"}
    pod["spec"]["volumes"].append({"name": "cache", "persistentVolumeClaim": claim})
    fetch(pod)["volumeMounts"].append({"name": "cache", "mountPath": "/model-cache"})
    fetch(pod)["command"] += ["--cache=/model-cache", "--cache-bytes=1073741824"]


def variable(container: dict[str, Any], name: str, **stated: Any) -> None:
    container["env"].append({"name": name, **stated})


def sidecar(pod: Manifest, **changes: Any) -> None:
    pod["spec"]["containers"].append({**copy.deepcopy(server(pod)), "name": "other", **changes})


SECRET = {"secret": {"secretName": "other"}}
ATTEMPTS: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "another digest": (
        lambda pod: model(pod, f"registry.example.com/models/digits@sha256:{OTHER}"),
        "model of fetch",
    ),
    "the digest in another repository": (
        lambda pod: model(pod, f"registry.example.com/models/other@sha256:{KEY}"),
        "model of fetch",
    ),
    "the digest in another registry": (
        lambda pod: model(pod, f"registry.example.org/models/digits@sha256:{KEY}"),
        "model of fetch",
    ),
    "a tag": (
        lambda pod: model(pod, "registry.example.com/models/digits:production"),
        "model of fetch",
    ),
    "a tag with the digest": (
        lambda pod: model(pod, f"registry.example.com/models/digits:v1@sha256:{KEY}"),
        "model of fetch",
    ),
    "two digests": (
        lambda pod: model(pod, f"registry.example.com/models/digits@sha256:{KEY}@sha256:{OTHER}"),
        "model of fetch",
    ),
    "a variable in the reference": (
        lambda pod: (model(pod, "$(OCI_MODEL)"), variable(fetch(pod), "OCI_MODEL", value="x")),
        "model of fetch",
    ),
    "another source": (
        lambda pod: fetch(pod)["command"].__setitem__(3, "s3://models/digits"),
        "command of fetch",
    ),
    "the source as an argument": (
        lambda pod: fetch(pod).update(
            command=["python3", "-m"],
            args=["inference.fetch", UNKNOWN_URL, "/models/export"],
        ),
        "model of fetch",
    ),
    "two sources": (lambda pod: fetch(pod)["command"].insert(4, UNKNOWN_URL), "model of fetch"),
    "several arguments in one string": (
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
                    f"oci://a.b/c@sha256:{OTHER}",
                    "/models/export",
                ],
            }
        ),
        "model of other",
    ),
    "another image of the init container": (
        lambda pod: fetch(pod).update(image=f"registry.example.com/ml/own@sha256:{KEY}"),
        "image of fetch",
    ),
    "another image of the server": (
        lambda pod: server(pod).update(image=f"registry.example.com/ml/own@sha256:{KEY}"),
        "image of inference",
    ),
    "an image by tag": (
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
        lambda pod: sidecar(pod, command=["sh", "-c", "cp"]),
        "command of other",
    ),
    "a working directory with modules": (
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
        lambda pod: instead(pod, persistentVolumeClaim={"claimName": "checkpoints"}),
        "volumeMounts of inference",
    ),
    "a cache that the server mounts": (
        lambda pod: (
            cached(pod),
            server(pod)["volumeMounts"].append({"name": "cache", "mountPath": "/model-cache"}),
        ),
        "volumeMounts of inference",
    ),
    "a cache as the model": (
        lambda pod: (
            cached(pod),
            fetch(pod)["volumeMounts"][-1].update(mountPath="/models/export"),
        ),
        "volumeMounts of fetch",
    ),
    "a part of a cache": (
        lambda pod: (cached(pod), fetch(pod)["volumeMounts"][-1].update(subPath="other")),
        "volumeMounts of fetch",
    ),
    "another source with a cache": (
        lambda pod: (cached(pod), model(pod, f"registry.example.com/models/digits@sha256:{OTHER}")),
        "model of fetch",
    ),
    "a claim as a device": (
        lambda pod: (
            cached(pod),
            server(pod).update(
                volumeDevices=[{"name": "cache", "devicePath": "/models/export/model.safetensors"}]
            ),
        ),
        "volumeDevices of inference",
    ),
    "a ConfigMap": (lambda pod: instead(pod, configMap={"name": "other"}), "volume models"),
    "a Secret as the model": (lambda pod: instead(pod, **SECRET), "volumeMounts of inference"),
    "an ephemeral volume": (
        lambda pod: instead(
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
    "a CSI volume": (lambda pod: instead(pod, csi={"driver": "example.com"}), "volume models"),
    "a projected volume": (
        lambda pod: instead(pod, projected={"sources": [{"secret": {"name": "other"}}]}),
        "volume models",
    ),
    "another image volume": (
        lambda pod: mounted(pod, f"registry.example.com/models/digits@sha256:{OTHER}"),
        "model of models",
    ),
    "an image volume by tag": (
        lambda pod: mounted(pod, "registry.example.com/models/digits:production"),
        "model of models",
    ),
    "an image volume of another repository": (
        lambda pod: mounted(pod, f"registry.example.com/models/other@sha256:{KEY}"),
        "model of models",
    ),
    "a part of an image volume": (
        lambda pod: (mounted(pod), server(pod)["volumeMounts"][0].update(subPath="other")),
        "volumeMounts of inference",
    ),
    "an image volume at another path": (
        lambda pod: (mounted(pod), server(pod)["volumeMounts"][0].update(mountPath="/app")),
        "volumeMounts of inference",
    ),
    "a Secret inside the model": (
        lambda pod: volume(pod, "/models/export/model.safetensors", **SECRET),
        "volumeMounts of inference",
    ),
    "a Secret over the program": (
        lambda pod: volume(pod, "/app/inference", **SECRET),
        "volumeMounts of inference",
    ),
    "a path with dots": (
        lambda pod: volume(pod, "/secrets/../models", **SECRET),
        "volumeMounts of inference",
    ),
    "another path of the model": (
        lambda pod: server(pod)["env"][-1].update(value="/secrets/other"),
        "environment of inference",
    ),
    "a path of the model that leaves it": (
        lambda pod: server(pod)["env"][-1].update(value="/models/../secrets/other"),
        "environment of inference",
    ),
    "a path of the model in a Secret": (
        lambda pod: server(pod)["env"].__setitem__(
            -1,
            {
                "name": "INFERENCE_MODEL_PATH",
                "valueFrom": {"secretKeyRef": {"name": "other", "key": "path"}},
            },
        ),
        "environment of inference",
    ),
    "a search path of modules": (
        lambda pod: variable(server(pod), "PYTHONPATH", value="/secrets/other"),
        "environment of inference",
    ),
    "a preloaded library": (
        lambda pod: variable(fetch(pod), "LD_PRELOAD", value="/secrets/other/library.so"),
        "environment of fetch",
    ),
    "a home directory with modules": (
        lambda pod: server(pod)["env"][0].update(value="/secrets/other"),
        "environment of inference",
    ),
    "all variables of a Secret": (
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
    "a label of another role": (
        lambda pod: (
            pod["metadata"]["labels"].update({"app.kubernetes.io/component": "training"}),
            model(pod, f"registry.example.com/models/digits@sha256:{OTHER}"),
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
    admission.install("deny", ONLY)
    file = admission.platform.checkout / "rights.yaml"
    file.write_text(RIGHTS)
    admission.apply(file)
    yield admission
    admission.uninstall()


def refused(answer: Response) -> str:
    """Return the part of the denial that concerns the model."""
    assert "model-signed: " in answer.denied, answer.body
    return answer.denied.partition("model-signed: ")[2].partition(": Inference serves only")[0]


def test_promoted_model_is_admitted(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    volume, copied = promoted(), promoted()
    mounted(volume)
    cached(copied)
    for pod in (promoted(), volume, copied):
        for manifest in (pod, deployment(pod)):
            answer = api.create(manifest, SPACE)
            assert answer.status == 201, answer.body


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("made", [copy.deepcopy, deployment], ids=["pod", "template"])
def test_pod_that_serves_anything_else_is_denied(
    cluster: Cluster, attempt: str, made: Callable[[Manifest], Manifest]
) -> None:
    change, reason = ATTEMPTS[attempt]
    pod = promoted()
    change(pod)
    assert reason in refused(cluster.api.as_user("serving").create(made(pod), SPACE))


def test_existing_pod_cannot_be_relabeled_as_a_server(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    pod = promoted()
    pod["metadata"]["labels"] = {}
    server(pod)["command"] = ["python3", "-c", "serve()"]
    try:
        assert api.create(pod, SPACE, dry_run=False).status == 201
        labeled = api.patch(f"{PODS}/digits", {"metadata": {"labels": LABELS}})
        assert refused(labeled) == "command of inference"
    finally:
        cluster.api.delete(PODS)


def test_debug_container_in_a_server_is_denied(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    try:
        assert api.create(promoted(), SPACE, dry_run=False).status == 201
        debugger = {"name": "debugger", "image": server(promoted())["image"], "command": ["sh"]}
        added = {"spec": {"ephemeralContainers": [debugger]}}
        answer = api.patch(f"{PODS}/digits/ephemeralcontainers", added)
        assert "command of debugger" in refused(answer)
    finally:
        cluster.api.delete(PODS)


def test_account_that_deploys_services_cannot_promote_models(cluster: Cluster) -> None:
    entry = {"data": {OTHER: VALUE.replace(KEY, OTHER)}}
    api = cluster.api.as_user("serving")
    assert "cannot patch resource" in api.patch(OBJECT, entry).denied
    assert "cannot delete resource" in api.delete(OBJECT).denied
    moved = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, **entry}
    assert "cannot create resource" in api.create(moved, SPACE).denied


@pytest.mark.parametrize(
    "entry",
    [
        f"registry.example.com/models/digits@sha256:{OTHER}",
        VALUE,
        VALUE.replace(KEY, OTHER, 1).replace("policies=passed", "policies=refused"),
        VALUE.replace(KEY, OTHER, 1).replace(" metrics=accuracy:0.98", " metrics="),
    ],
)
def test_promoters_cannot_add_an_entry_without_a_lineage(cluster: Cluster, entry: str) -> None:
    denied = cluster.api.as_user("promoter").patch(OBJECT, {"data": {OTHER: entry}}).denied
    assert f"model-lineage-complete: {OTHER}" in denied


def test_model_is_admitted_from_its_promotion_until_its_withdrawal(cluster: Cluster) -> None:
    promoter, serving = (cluster.api.as_user(name) for name in ("promoter", "serving"))
    pod = promoted()
    model(pod, f"registry.example.com/models/digits@sha256:{OTHER}")
    entry = VALUE.replace(KEY, OTHER, 1)
    assert promoter.patch(OBJECT, {"data": {OTHER: entry}}).status == 200
    admitted(serving, pod, True)
    assert promoter.patch(OBJECT, {"data": {OTHER: None}}).status == 200
    admitted(serving, pod, False)


def admitted(serving: ApiServer, pod: Manifest, expected: bool) -> None:
    """Wait until the policies have seen the parameter object."""
    await_(lambda: (serving.create(pod, SPACE).status == 201) is expected, "the parameters")


def test_no_serving_pod_is_admitted_without_the_parameter_object(cluster: Cluster) -> None:
    api = cluster.api.as_user("serving")
    other = promoted()
    other["metadata"]["labels"] = {}
    try:
        assert cluster.api.delete(OBJECT).status == 200
        admitted(api, promoted(), False)
        admitted(api, other, False)
    finally:
        cluster.install("deny", ONLY)
    admitted(api, promoted(), True)
    admitted(api, other, True)
