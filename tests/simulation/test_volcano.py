"""Volcano processes next to a control plane without real nodes."""

import base64
import json
import socket
from pathlib import Path

import pytest

from devcluster.paths import Layout
from infra.settings.volcano import ControllersSettings, VolcanoSettings
from simulation.supervisor import Service
from simulation.volcano import Webhooks, apply_definitions, scheduler_program, volcano_services

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


def test_crds_are_established_before_other_objects_are_created(
    simulated: Layout, binaries: Path, tmp_path: Path
) -> None:
    definitions = tmp_path / "crds"
    definitions.mkdir()
    for name in ("queues.yaml", "jobs.yaml", "README.md"):
        (definitions / name).touch()
    apply_definitions(simulated.kubeconfig, binaries, definitions)
    applied, annotated, awaited, namespace = (binaries / "calls").read_text().splitlines()
    kubeconfig = f"--kubeconfig={simulated.kubeconfig}"
    files = " ".join(f"--filename={definitions / name}" for name in ("jobs.yaml", "queues.yaml"))
    assert applied == f"{kubeconfig} apply --server-side --force-conflicts {files}"
    assert annotated.startswith(f"{kubeconfig} annotate --overwrite gpu-platform.dev/started=")
    assert annotated.endswith(files)
    assert awaited == f"{kubeconfig} wait --for=condition=Established --timeout=60s {files}"
    assert namespace == f"{kubeconfig} apply --server-side --filename=-"
    assert '"name":"volcano-system"' in (binaries / "applied").read_text()


def test_wait_is_repeated_for_crds_without_conditions(
    simulated: Layout, binaries: Path, tmp_path: Path
) -> None:
    """`kubectl wait` fails with ".status.conditions accessor error: <nil> is of the type <nil>"."""
    fail_once = 'case "$*" in *" wait "*) mkdir "$0.failed" 2>/dev/null && exit 1 ;; esac; true\n'
    (binaries / "kubectl").write_text(KUBECTL + fail_once)
    apply_definitions(simulated.kubeconfig, binaries, tmp_path)
    calls = (binaries / "calls").read_text().splitlines()
    assert sum("--for=condition=Established" in call for call in calls) == 2


def test_scheduler_and_controllers_use_the_kubeconfig_of_the_cluster(
    simulated: Layout, binaries: Path
) -> None:
    services = services_of(simulated, binaries)
    assert [service.name for service in services] == ["vc-scheduler", "vc-controller-manager"]
    for service in services:
        assert service.command[0] == str(binaries / service.name)
        assert f"--kubeconfig={simulated.kubeconfig}" in service.command
        assert "--leader-elect=false" in service.command
        assert Path(service.environment["DEBUG_SOCKET_DIR"]).is_relative_to(simulated.state)


def test_volcano_opens_no_ports_on_the_host(simulated: Layout, binaries: Path) -> None:
    scheduler, controllers = services_of(simulated, binaries)
    assert {"--enable-healthz=false", "--enable-metrics=false"} <= set(scheduler.command)
    assert "--enable-healthz=false" in controllers.command


def test_controllers_use_the_rate_limits_of_a_helm_release(
    simulated: Layout, binaries: Path
) -> None:
    _, controllers = services_of(simulated, binaries)
    settings = ControllersSettings()
    assert f"--kube-api-qps={settings.requests_per_second}" in controllers.command
    assert f"--kube-api-burst={settings.burst}" in controllers.command
    assert f"--worker-threads={settings.workers}" in controllers.command
    assert f"--worker-threads-for-podgroup={settings.workers}" in controllers.command


def test_log_levels_match_a_helm_release(simulated: Layout, binaries: Path) -> None:
    for service in services_of(simulated, binaries):
        assert f"--v={VolcanoSettings().log_level}" in service.command


def test_the_directory_of_the_scheduler_configuration_exists(
    simulated: Layout, binaries: Path
) -> None:
    scheduler, _ = services_of(simulated, binaries)
    assert f"--scheduler-conf={simulated.scheduler_configuration}" in scheduler.command
    assert simulated.scheduler_configuration.parent.is_dir()


@pytest.fixture
def webhooks(simulated: Layout, tmp_path: Path) -> Webhooks:
    simulated.pki.mkdir(parents=True)
    (simulated.pki / "ca.crt").write_text("authority")
    webhooks = [
        {"clientConfig": {"service": {"name": "volcano-admission-service", "path": path}}}
        for path in ("/jobs/validate", "/queues/validate")
    ]
    file = tmp_path / "webhooks.json"
    file.write_text(json.dumps([{"kind": "Hooks", "webhooks": [each]} for each in webhooks]))
    return Webhooks.of(file, simulated.pki)


def test_webhooks_are_registered_with_loopback_addresses(
    webhooks: Webhooks, simulated: Layout, binaries: Path
) -> None:
    webhooks.apply(simulated.kubeconfig, binaries)
    applied = json.loads((binaries / "applied").read_text())["items"]
    clients = [webhook["clientConfig"] for item in applied for webhook in item["webhooks"]]
    authority = base64.b64encode(b"authority").decode()
    assert clients == [
        {"url": f"https://127.0.0.1:{webhooks.port}{path}", "caBundle": authority}
        for path in ("/jobs/validate", "/queues/validate")
    ]


def test_exactly_the_registered_webhooks_are_served(
    webhooks: Webhooks, simulated: Layout, binaries: Path
) -> None:
    command = webhooks.service(simulated.kubeconfig, binaries).command
    assert "--enabled-admission=/jobs/validate,/queues/validate" in command
    assert {"--listen-address=127.0.0.1", f"--port={webhooks.port}"} <= set(command)


def test_wait_returns_once_the_webhooks_are_served(webhooks: Webhooks) -> None:
    with pytest.raises(OSError, match="refused"):
        webhooks.wait(0.1)
    with socket.create_server(("127.0.0.1", webhooks.port)):
        webhooks.wait(0.1)


@pytest.mark.parametrize(
    ("version", "program"),
    [
        ("v1.10.2", "vc-scheduler-1.10"),
        ("1.10", "vc-scheduler-1.10"),
        ("v1.1.0", "vc-scheduler"),
        ("v1.14.1", "vc-scheduler"),
        ("latest", "vc-scheduler"),
        ("", "vc-scheduler"),
    ],
)
def test_scheduler_with_the_requested_minor_version_is_used_if_it_was_built(
    version: str, program: str, simulated: Layout, binaries: Path
) -> None:
    for name in ("vc-scheduler", "vc-scheduler-1.10"):
        (binaries / name).touch()
    assert scheduler_program(binaries, version) == binaries / program
    paths = (simulated.kubeconfig, binaries, simulated.scheduler_configuration, simulated.state)
    scheduler, _ = volcano_services(*paths, version)
    assert scheduler.command[0] == str(binaries / program)
