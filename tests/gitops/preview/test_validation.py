import json
from pathlib import Path

import pytest

from gitops.engine import Stack
from gitops.errors import GitopsError
from gitops.preview.validation import probe

CONFIG = """
config:
  gpu-platform:cluster: {context: blue}
  gpu-platform:tenancy: {namespace: ml}
  gpu-platform:volcano: {queues: {research: {}}}
  gpu-platform:storage: {claims: {checkpoints: {size: 1Gi}}}
  gpu-platform:training: {jobs: {digits: {queue: research}, other: {kind: indexed}}}
"""
CHECKED_RIGHTS = 8
"""Checked rights: to create and to patch a queue, a claim and jobs of two kinds."""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "Pulumi.blue.yaml"
    file.write_text(CONFIG)
    return Stack("blue", tmp_path, file)


def kubectl(folder: Path, answer: str) -> None:
    program = folder / "kubectl"
    kinds = "[ $1 = api-resources ] && { echo jobsets.jobset.x-k8s.io; exit; }"
    kinds += "\n[ $1 = get ] && { echo storageclass.storage.k8s.io/standard; exit; }"
    files = f'echo "$@" > {folder}/options\n/bin/cat > {folder}/reviews'
    program.write_text(f"#!/bin/sh\n{kinds}\n{files}\n{answer}\n")
    program.chmod(0o755)


def answers(*allowed: bool) -> str:
    return "\n".join(f"echo {str(each).lower()}" for each in allowed)


def test_a_user_with_full_rights_gets_no_notice(stack: Stack) -> None:
    kubectl(stack.project, answers(*[True] * CHECKED_RIGHTS))
    assert probe(stack) == ()
    assert "--context blue" in (stack.project / "options").read_text()
    reviews = json.loads((stack.project / "reviews").read_text())["items"]
    rights = [review["spec"]["resourceAttributes"] for review in reviews]
    patch = {"verb": "patch", "group": "scheduling.volcano.sh", "resource": "queues"}
    # The right to patch cluster-scoped objects may be limited to the stack's objects.
    assert {**patch, "name": "research"} in rights
    assert [r["resource"] for r in rights if r.get("namespace") == "ml"] == [
        *["persistentvolumeclaims"] * 2,
        *["jobs"] * 4,
    ]


def test_multi_node_service_requires_rights_for_leaderworkersets(stack: Stack) -> None:
    stack.file.write_text(
        "config: {gpu-platform:inference: {services: {digits: {}, other: {}, "
        "chat: {server: {nnodes: 2}}}}}"
    )
    kubectl(stack.project, answers(True, True, True, False))
    denied, missing = probe(stack)
    assert "this user is not allowed to `patch leaderworkersets`, so" in denied
    assert "the cluster lacks `leaderworkersets.leaderworkerset.x-k8s.io`." in missing
    reviews = json.loads((stack.project / "reviews").read_text())["items"]
    names = [review["spec"]["resourceAttributes"].get("name") for review in reviews]
    assert names == [None, "digits", None, "chat"]


def test_routes_require_the_gateway_api(stack: Stack) -> None:
    stack.file.write_text(
        "config: {gpu-platform:inference: {services: {a: {route: {ingress: {class_name: nginx}}}, "
        "b: {route: {gateway: {name: public}, grpc_hostnames: [grpc.example.com]}}}}, "
        "gpu-platform:training: {jobs: {c: {kind: notebook, "
        "notebook: {route: {gateway: {name: public}}}}}}}"
    )
    kubectl(stack.project, answers(*[True] * 8))
    (missing,) = probe(stack)
    gateway_api = "gateway.networking.k8s.io"
    assert f"the cluster lacks `grpcroutes.{gateway_api}`, `httproutes.{gateway_api}`." in missing


def test_autoscaling_and_monitoring_require_their_operators(stack: Stack) -> None:
    config = (
        "config: {gpu-platform:inference: {services: {a: {autoscaling: {max: 2}}, "
        "b: {autoscaling: {keda: {prometheus: 'http://prometheus:9090'}}}}}, "
        "gpu-platform:monitoring: {prometheus: operator, kube_prometheus_stack: {install: %s}}}"
    )
    stack.file.write_text(config % "false")
    kubectl(stack.project, answers(*[True] * CHECKED_RIGHTS))
    (missing,) = probe(stack)
    monitoring = [f"`{kind}.monitoring.coreos.com`" for kind in ("podmonitors", "prometheusrules")]
    assert f"the cluster lacks {', '.join(monitoring)}, `scaledobjects.keda.sh`." in missing
    stack.file.write_text(config % "true")
    (missing,) = probe(stack)
    assert "the cluster lacks `scaledobjects.keda.sh`." in missing


def test_missing_storage_classes_are_reported(stack: Stack) -> None:
    stack.file.write_text(
        "config: {gpu-platform:storage: {classes: {nfs: {}}, claims: {a: {storage_class: nfs}, "
        "b: {storage_class: standard}, c: {storage_class: efs}, d: {storage_class: efs}}}}"
    )
    kubectl(stack.project, answers(True, True))
    (missing,) = probe(stack)
    assert missing.startswith("The cluster has no storage class `efs`, so")
    assert "waits for the claims `c`, `d`, and then fails" in missing


def test_missing_right_is_reported(stack: Stack) -> None:
    kubectl(stack.project, answers(True, True, True, False, *[True] * (CHECKED_RIGHTS - 4)))
    (notice,) = probe(stack)
    assert notice.startswith(
        "Not validated by the API server: this user is not allowed to "
        "`patch persistentvolumeclaims`, so"
    )


@pytest.mark.parametrize("installs_volcano", [True, False])
def test_kinds_that_the_cluster_lacks_are_reported(stack: Stack, installs_volcano: bool) -> None:
    stack.file.write_text(
        f"config: {{gpu-platform:volcano: {{install: {str(installs_volcano).lower()}}}, "
        "gpu-platform:training: {jobs: {a: {kind: ray}, b: {kind: jobset}, c: {kind: indexed}, "
        "d: {}}}}"
    )
    kubectl(stack.project, answers(*[True] * 8))
    volcano = "" if installs_volcano else "`jobs.batch.volcano.sh`, "
    assert probe(stack) == (
        f"Not validated by the API server: the cluster lacks {volcano}`rayjobs.ray.io`. Install "
        "the operator first; otherwise, the update fails.",
    )


@pytest.mark.parametrize(
    "answer",
    [
        "echo 'connection refused' >&2; exit 1",
        "echo true; echo 'connection refused' >&2",
        # kubectl logs each attempt with the time and its process ID.
        "echo 'E1129 16:54:55.237291   31660 memcache.go:265] \"Unhandled Error\"' >&2\n"
        "echo 'connection refused' >&2; exit 1",
    ],
)
def test_unreachable_cluster_is_an_error(stack: Stack, answer: str) -> None:
    kubectl(stack.project, answer)
    with pytest.raises(GitopsError, match=r"blue does not respond.*: connection refused \("):
        probe(stack)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: {}", "connection refused"),
        ("config: {kubernetes:kubeconfig: {secure: AAABAK}}", "is not a file path"),
        (f"config: {{kubernetes:kubeconfig: '{{{'x' * 300}}}'}}", "is not a file path"),
        ("environment: [team/prod]", "Pulumi ESC"),
    ],
    ids=["unreachable cluster", "encrypted kubeconfig", "inline kubeconfig", "Pulumi ESC"],
)
def test_validation_of_other_projects_may_be_unknown(stack: Stack, text: str, reason: str) -> None:
    stack.file.write_text(text)
    kubectl(stack.project, "echo 'connection refused' >&2; exit 1")
    (notice,) = probe(stack)
    assert notice.startswith("It is unknown whether the API server validated this preview: ")
    assert reason in notice
    options = stack.project / "options"
    assert not options.exists() or "xxx" not in options.read_text()


def test_drift_needs_a_reachable_cluster_but_no_write_access(stack: Stack) -> None:
    kubectl(stack.project, answers(False))
    assert probe(stack, dry_run=False) == ()
    kubectl(stack.project, "exit 1")
    with pytest.raises(GitopsError, match="does not respond"):
        probe(stack, dry_run=False)


def test_validation_is_unknown_without_kubectl(stack: Stack) -> None:
    (notice,) = probe(stack)
    assert notice.startswith("It is unknown whether the API server validated this preview: ")


def test_configuration_of_the_default_provider_is_used(stack: Stack) -> None:
    stack.file.write_text("config: {kubernetes:context: green}")
    kubectl(stack.project, answers(True))
    assert probe(stack) == ()
    assert "--context green" in (stack.project / "options").read_text()
    stack.file.write_text("config: {kubernetes:renderYamlToDirectory: rendered}")
    (stack.project / "kubectl").unlink()
    assert probe(stack) == ()


def test_home_directory_in_the_path_of_the_kubeconfig_is_expanded(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    stack.file.write_text(CONFIG.replace("context: blue", "context: blue, kubeconfig: ~/blue"))
    kubectl(stack.project, answers(*[True] * CHECKED_RIGHTS))
    assert probe(stack) == ()
    assert "--kubeconfig /home/ann/blue" in (stack.project / "options").read_text()


def test_a_rendered_stack_needs_no_api_server(stack: Stack) -> None:
    stack.file.write_text("config: {gpu-platform:cluster: {render_to: out}}")
    assert probe(stack) == ()
