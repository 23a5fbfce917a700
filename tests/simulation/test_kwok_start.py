"""The script that kwokctl starts as kwok, with a kubectl and a kwok that record their arguments."""

import subprocess
from pathlib import Path

import pytest

from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from simulation.configuration import LEASES, Settings, write_kwok_start

KUBECTL = """#!/bin/sh
echo "kubectl $*" >> {notes}
[ "$(grep -c kubectl {notes})" -ge 3 ]
"""
KWOK = '#!/bin/sh\necho "kwok $*" >> {notes}\n'


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def binaries(tmp_path: Path, notes: Path) -> Path:
    folder = tmp_path / "tools of now"
    folder.mkdir()
    for name, script in (("kubectl", KUBECTL), ("kwok", KWOK)):
        (folder / name).write_text(script.format(notes=notes))
        (folder / name).chmod(0o755)
    return folder


def prepared(layout: Layout, binaries: Path) -> Settings:
    layout.control_plane.mkdir(parents=True)
    return layout.control_plane_settings(cluster_spec(Kind.SIMULATED), binaries, 6443)


def test_the_version_is_available_without_a_cluster(
    layout: Layout, binaries: Path, notes: Path
) -> None:
    settings = prepared(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--version"], check=True, timeout=500)
    assert notes.read_text() == "kwok --version\n"


def test_kwok_starts_after_earlier_leases_have_expired(
    layout: Layout, binaries: Path, notes: Path
) -> None:
    settings = prepared(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--node-port=1", "a b"], check=True, timeout=500)
    *asked, started = notes.read_text().splitlines()
    assert len(asked) == 3  # the API server does not answer at once
    kubeconfig = layout.pki.parent / "kubeconfig.yaml"
    assert set(asked) == {f"kubectl --kubeconfig={kubeconfig} delete --raw={LEASES}"}
    assert started == "kwok --node-port=1 a b"
