"""Volcano next to a control plane without real nodes."""

from pathlib import Path

import pytest

from devcluster.paths import Layout
from infra.settings.volcano import ControllersSettings, VolcanoSettings
from simulation.supervisor import Service
from simulation.volcano import apply_definitions, volcano_services

KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "$(dirname "$0")/calls"
case "$*" in *--filename=-*) cat >> "$(dirname "$0")/applied" ;; esac
"""


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    return folder


def services_of(layout: Layout, binaries: Path) -> list[Service]:
    configuration = layout.scheduler_configuration
    return volcano_services(layout.kubeconfig, binaries, configuration, layout.state / "klog")


def test_definitions_are_served_before_other_objects_are_created(
    simulated: Layout, binaries: Path, tmp_path: Path
):
    definitions = tmp_path / "crds"
    definitions.mkdir()
    for name in ("queues.yaml", "jobs.yaml", "README.md"):
        (definitions / name).touch()
    apply_definitions(simulated.kubeconfig, binaries, definitions)
    applied, changed, awaited, namespace = (binaries / "calls").read_text().splitlines()
    own = f"--kubeconfig={simulated.kubeconfig}"
    files = " ".join(f"--filename={definitions / name}" for name in ("jobs.yaml", "queues.yaml"))
    assert applied == f"{own} apply --server-side --force-conflicts {files}"
    assert changed.startswith(f"{own} annotate --overwrite gpu-platform.dev/started=")
    assert changed.endswith(files)
    assert awaited == f"{own} wait --for=condition=Established --timeout=60s {files}"
    assert namespace == f"{own} apply --server-side --filename=-"
    assert '"name":"volcano-system"' in (binaries / "applied").read_text()


def test_both_processes_use_the_kubeconfig_of_the_cluster(simulated: Layout, binaries: Path):
    services = services_of(simulated, binaries)
    assert [service.name for service in services] == ["vc-scheduler", "vc-controller-manager"]
    for service in services:
        assert service.command[0] == str(binaries / service.name)
        assert f"--kubeconfig={simulated.kubeconfig}" in service.command
        assert "--leader-elect=false" in service.command
        assert Path(service.environment["DEBUG_SOCKET_DIR"]).is_relative_to(simulated.state)


def test_no_process_opens_a_port_of_the_host(simulated: Layout, binaries: Path):
    scheduler, controllers = services_of(simulated, binaries)
    assert {"--enable-healthz=false", "--enable-metrics=false"} <= set(scheduler.command)
    assert "--enable-healthz=false" in controllers.command


def test_controllers_have_the_rate_limits_of_a_release(simulated: Layout, binaries: Path):
    _, controllers = services_of(simulated, binaries)
    pace = ControllersSettings()
    assert f"--kube-api-qps={pace.requests_per_second}" in controllers.command
    assert f"--kube-api-burst={pace.burst}" in controllers.command
    assert f"--worker-threads={pace.workers}" in controllers.command
    assert f"--worker-threads-for-podgroup={pace.workers}" in controllers.command


def test_log_levels_are_those_of_a_release(simulated: Layout, binaries: Path):
    for service in services_of(simulated, binaries):
        assert f"--v={VolcanoSettings().log_level}" in service.command


def test_the_directory_of_the_scheduler_configuration_exists(simulated: Layout, binaries: Path):
    scheduler, _ = services_of(simulated, binaries)
    assert f"--scheduler-conf={simulated.scheduler_configuration}" in scheduler.command
    assert simulated.scheduler_configuration.parent.is_dir()
