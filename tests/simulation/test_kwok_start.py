"""The start script for kwok, with fake kubectl and kwok programs that record their arguments."""

import subprocess
from pathlib import Path

import pytest

from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from simulation.configuration import LEASES, Settings, write_kwok_start

KUBECTL = """#!/bin/sh
echo "kubectl $*" >> {calls}
[ "$(grep -c kubectl {calls})" -ge 3 ]
"""
KWOK = '#!/bin/sh\necho "kwok $*" >> {calls}\n'


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def binaries(tmp_path: Path, calls: Path) -> Path:
    folder = tmp_path / "current tools"
    folder.mkdir()
    for name, script in (("kubectl", KUBECTL), ("kwok", KWOK)):
        (folder / name).write_text(script.format(calls=calls))
        (folder / name).chmod(0o755)
    return folder


def prepare(layout: Layout, binaries: Path) -> Settings:
    layout.control_plane.mkdir(parents=True)
    return layout.control_plane_settings(cluster_spec(Kind.SIMULATED), binaries, 6443)


def test_version_can_be_printed_without_a_cluster(
    layout: Layout, binaries: Path, calls: Path
) -> None:
    settings = prepare(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--version"], check=True, timeout=500)
    assert calls.read_text() == "kwok --version\n"


def test_kwok_starts_only_after_the_earlier_leases_have_been_deleted(
    layout: Layout, binaries: Path, calls: Path
) -> None:
    settings = prepare(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--node-port=1", "a b"], check=True, timeout=500)
    *deletions, started = calls.read_text().splitlines()
    assert len(deletions) == 3  # the first two requests fail
    kubeconfig = layout.pki.parent / "kubeconfig.yaml"
    assert set(deletions) == {f"kubectl --kubeconfig={kubeconfig} delete --raw={LEASES}"}
    assert started == "kwok --node-port=1 a b"
