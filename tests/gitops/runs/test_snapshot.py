"""Handling of kubectl's output."""

import json
import sys

import pytest

from gitops.errors import GitopsError
from gitops.runs import snapshot
from gitops.runs.snapshot import Cluster


def kubectl_printing(text: str) -> Cluster:
    """Return a cluster whose kubectl prints the text."""
    return Cluster((sys.executable, "-c", f"print({text!r})"))


POD = {"kind": "Pod", "metadata": {"namespace": "ml", "name": "digits"}}


@pytest.mark.parametrize(
    "text",
    [
        *("", "<html>sign in</html>", "[]", '{"items": null}', '{"items": [1]}', "[" * 100_000),
        json.dumps({"items": [POD]}),
        json.dumps({"items": [{**POD, "spec": {"containers": None}}]}),
    ],
)
def test_invalid_kubectl_output_is_reported(text: str) -> None:
    with pytest.raises(GitopsError, match="kubectl did not print a list of objects"):
        kubectl_printing(text).snapshot()


def test_unresponsive_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(GitopsError, match=r"did not respond within 0\.1 s"):
        Cluster((sys.executable, "-c", "import time; time.sleep(60)")).snapshot()


def test_log_of_a_pod_on_a_lost_node_is_not_awaited_as_long_as_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "LOG_TIMEOUT_SECONDS", 0.1)
    slow = Cluster((sys.executable, "-c", "import time; time.sleep(5); print('late')"))
    assert slow.logs("ml", "digits-0", 10) == []
    assert snapshot.LOG_TIMEOUT_SECONDS < snapshot.TIMEOUT_SECONDS
