from pathlib import Path

import pytest

from gitops.engine import Stack
from gitops.preview.validation import notices

CONFIG = """
config:
  gpu-platform:cluster: {context: blue}
  gpu-platform:tenancy: {namespace: ml}
"""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "Pulumi.blue.yaml"
    file.write_text(CONFIG)
    return Stack("blue", tmp_path, file)


def kubectl(folder: Path, answer: str) -> None:
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{answer}\n')
    program.chmod(0o755)


def test_a_user_with_full_rights_gets_no_notice(stack: Stack) -> None:
    kubectl(stack.project, "echo yes")
    assert notices(stack) == ()
    asked = (stack.project / "asked").read_text().splitlines()
    assert asked[1] == "auth can-i patch deployments.apps --context blue --namespace ml"


def test_a_user_who_may_only_read_gets_a_notice(stack: Stack) -> None:
    kubectl(stack.project, "echo no; exit 1")
    (notice,) = notices(stack)
    assert notice.startswith("Not validated by the API server: this user may not `create` and")


@pytest.mark.parametrize("answer", ["echo 'connection refused' >&2; exit 1", None])
def test_an_unknown_answer_is_reported(stack: Stack, answer: str | None) -> None:
    if answer is not None:
        kubectl(stack.project, answer)
    (notice,) = notices(stack)
    assert notice.startswith("It is unknown whether the API server validated this preview: ")
    assert "connection refused" in notice or "not on the PATH" in notice


def test_a_rendered_stack_needs_no_api_server(stack: Stack) -> None:
    stack.file.write_text("config: {gpu-platform:cluster: {render_to: out}}")
    assert notices(stack) == ()
