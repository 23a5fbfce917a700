"""Recovery from a killed update, with fakes for `pulumi` and `kubectl`."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.deploy.recovery import Release, interrupted_releases, recover
from devcluster.deploy.stack import Stack
from devcluster.paths import Layout
from tests.devcluster.programs import Install

FAKE_PROGRAM = 'echo "$(basename "$0") $*" >> "$FAKE_CLI/calls"\ncat "$FAKE_CLI/out" 2>/dev/null\n'


def creating(kind: str, **inputs: str) -> dict[str, Any]:
    return {"type": "creating", "resource": {"type": kind, "inputs": inputs}}


RELEASE = creating("kubernetes:helm.sh/v3:Release", name="volcano", namespace="volcano-system")
POD = creating("kubernetes:core/v1:Pod", name="worker")


@pytest.fixture
def fake_cli(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "fake-cli"
    folder.mkdir()
    monkeypatch.setenv("FAKE_CLI", str(folder))
    for name in ("pulumi", "kubectl"):
        install(name, FAKE_PROGRAM)
    return folder


def state(fake_cli: Path, *pending: dict[str, Any]) -> None:
    document = {"deployment": {"pending_operations": list(pending) or None}}
    (fake_cli / "out").write_text(json.dumps(document))


def test_interrupted_release_installation_is_found_by_name_and_namespace() -> None:
    assert list(interrupted_releases([POD, RELEASE])) == [
        Release("volcano-system", "owner=helm,name=volcano")
    ]


def test_interrupted_release_upgrade_keeps_earlier_revisions() -> None:
    assert list(interrupted_releases([{**RELEASE, "type": "updating"}])) == [
        Release("volcano-system", "owner=helm,name=volcano,status=pending-upgrade")
    ]


def test_interrupted_release_deletion_is_left_to_helm() -> None:
    assert list(interrupted_releases([{**RELEASE, "type": "deleting"}])) == []


def test_interrupted_release_without_a_name_is_ignored() -> None:
    assert list(interrupted_releases([creating("kubernetes:helm.sh/v3:Release")])) == []


def test_complete_update_leaves_no_pending_operations(layout: Layout, fake_cli: Path) -> None:
    state(fake_cli)
    assert Stack("dev", layout, {}).pending_operations() == []
    assert (fake_cli / "calls").read_text().splitlines() == [
        "pulumi stack export --stack dev --non-interactive"
    ]


def test_helms_secret_is_deleted_and_pending_operations_are_cleared(
    layout: Layout, fake_cli: Path
) -> None:
    state(fake_cli, POD, RELEASE)
    stack = Stack("dev", layout, {})
    recover(stack, stack.pending_operations(), ["kubectl"])
    _, delete, refresh = (fake_cli / "calls").read_text().splitlines()
    assert delete == ("kubectl delete secret -n volcano-system --selector=owner=helm,name=volcano")
    assert "--clear-pending-creates" in refresh
