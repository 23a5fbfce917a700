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
QUESTIONS = 8
"""To create and to patch a queue, a claim and jobs of two kinds."""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "Pulumi.blue.yaml"
    file.write_text(CONFIG)
    return Stack("blue", tmp_path, file)


def kubectl(folder: Path, answer: str) -> None:
    program = folder / "kubectl"
    text = f'#!/bin/sh\necho "$@" > {folder}/options\n/bin/cat > {folder}/asked\n{answer}\n'
    program.write_text(text)
    program.chmod(0o755)


def answers(*allowed: bool) -> str:
    return "\n".join(f"echo {str(each).lower()}" for each in allowed)


def test_a_user_with_full_rights_gets_no_notice(stack: Stack) -> None:
    kubectl(stack.project, answers(*[True] * QUESTIONS))
    assert probe(stack) == ()
    assert "--context blue" in (stack.project / "options").read_text()
    asked = json.loads((stack.project / "asked").read_text())["items"]
    rights = [review["spec"]["resourceAttributes"] for review in asked]
    patch = {"verb": "patch", "group": "scheduling.volcano.sh", "resource": "queues"}
    # The right to patch objects of the cluster may be limited to those of the stack.
    assert {**patch, "name": "research"} in rights
    assert [r["resource"] for r in rights if r.get("namespace") == "ml"] == [
        *["persistentvolumeclaims"] * 2,
        *["jobs"] * 4,
    ]


def test_a_service_on_several_nodes_needs_the_right_to_its_groups(stack: Stack) -> None:
    stack.file.write_text(
        "config: {gpu-platform:inference: {services: {digits: {}, other: {}, "
        "chat: {server: {nnodes: 2}}}}}"
    )
    kubectl(stack.project, answers(True, True, True, False))
    (notice,) = probe(stack)
    assert "this user may not `patch leaderworkersets`, so" in notice
    asked = json.loads((stack.project / "asked").read_text())["items"]
    names = [review["spec"]["resourceAttributes"].get("name") for review in asked]
    assert names == [None, "digits", None, "chat"]


def test_a_missing_right_is_named(stack: Stack) -> None:
    kubectl(stack.project, answers(True, True, True, False, *[True] * (QUESTIONS - 4)))
    (notice,) = probe(stack)
    assert notice.startswith(
        "Not validated by the API server: this user may not `patch persistentvolumeclaims`, so"
    )


@pytest.mark.parametrize(
    "answer", ["echo 'connection refused' >&2; exit 1", "echo true; echo 'connection refused' >&2"]
)
def test_a_cluster_that_does_not_answer_is_an_error(stack: Stack, answer: str) -> None:
    kubectl(stack.project, answer)
    with pytest.raises(GitopsError, match=r"blue does not respond.*connection refused"):
        probe(stack)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: {}", "connection refused"),
        ("config: {kubernetes:kubeconfig: {secure: AAABAK}}", "is not a file path"),
        (f"config: {{kubernetes:kubeconfig: '{{{'x' * 300}}}'}}", "is not a file path"),
        ("environment: [team/prod]", "Pulumi ESC"),
    ],
    ids=["unreachable", "secret", "contents", "environment"],
)
def test_the_cluster_of_another_projects_program_may_be_unknown(
    stack: Stack, text: str, reason: str
) -> None:
    stack.file.write_text(text)
    kubectl(stack.project, "echo 'connection refused' >&2; exit 1")
    (notice,) = probe(stack)
    assert notice.startswith("It is unknown whether the API server validated this preview: ")
    assert reason in notice
    asked = stack.project / "options"
    assert not asked.exists() or "xxx" not in asked.read_text()


def test_drift_needs_an_answer_and_no_right_to_write(stack: Stack) -> None:
    kubectl(stack.project, answers(False))
    assert probe(stack, dry_run=False) == ()
    kubectl(stack.project, "exit 1")
    with pytest.raises(GitopsError, match="does not respond"):
        probe(stack, dry_run=False)


def test_without_kubectl_the_validation_is_unknown(stack: Stack) -> None:
    (notice,) = probe(stack)
    assert notice.startswith("It is unknown whether the API server validated this preview: ")


def test_other_projects_configure_the_default_provider(stack: Stack) -> None:
    stack.file.write_text("config: {kubernetes:context: green}")
    kubectl(stack.project, answers(True))
    assert probe(stack) == ()
    assert "--context green" in (stack.project / "options").read_text()
    stack.file.write_text("config: {kubernetes:renderYamlToDirectory: rendered}")
    (stack.project / "kubectl").unlink()
    assert probe(stack) == ()


def test_a_rendered_stack_needs_no_api_server(stack: Stack) -> None:
    stack.file.write_text("config: {gpu-platform:cluster: {render_to: out}}")
    assert probe(stack) == ()
