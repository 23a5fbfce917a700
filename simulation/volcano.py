"""Volcano next to a control plane without real nodes: its definitions and its two processes."""

import subprocess
import time
from pathlib import Path

from simulation.supervisor import Service

LOG_LEVEL = 2
"""Level of a stack's release; from 3 on the scheduler logs a line per full node."""


def apply_definitions(kubeconfig: Path, binaries: Path, definitions: Path) -> None:
    """Apply Volcano's CustomResourceDefinitions, until they are served, and its namespace."""
    kubectl = [str(binaries / "kubectl"), f"--kubeconfig={kubeconfig}"]
    files = [f"--filename={file}" for file in sorted(definitions.glob("*.yaml"))]
    # An API server that ended between accepting a definition's names and serving it continues
    # only when the definition changes.
    changed = f"gpu-platform.dev/started={time.time_ns()}"
    for command in (
        ["apply", "--server-side", "--force-conflicts", *files],
        ["annotate", "--overwrite", changed, *files],
        ["wait", "--for=condition=Established", "--timeout=60s", *files],
    ):
        subprocess.run([*kubectl, *command], check=True, stdout=subprocess.DEVNULL)
    namespace = '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"volcano-system"}}'
    subprocess.run(
        [*kubectl, "apply", "--server-side", "--filename=-"],
        input=namespace,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def volcano_services(
    kubeconfig: Path, binaries: Path, configuration: Path, sockets: Path
) -> list[Service]:
    """Return scheduler and controllers, without leader election: there is one of each."""
    common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--logtostderr"]
    configuration.parent.mkdir(parents=True, exist_ok=True)
    return [
        Service(
            "vc-scheduler",
            [
                str(binaries / "vc-scheduler"),
                *common,
                # Read whenever it changes; without it the scheduler uses its default.
                f"--scheduler-conf={configuration}",
                "--enable-healthz=false",
                "--enable-metrics=false",
                f"--v={LOG_LEVEL}",
            ],
            {"DEBUG_SOCKET_DIR": str(sockets)},
        ),
        Service(
            "vc-controller-manager",
            [
                str(binaries / "vc-controller-manager"),
                *common,
                # Defaults of a stack's release of Volcano.
                "--kube-api-qps=1000",
                "--kube-api-burst=2000",
                "--worker-threads=10",
                "--worker-threads-for-podgroup=10",
                "--enable-healthz=false",
                f"--v={LOG_LEVEL}",
            ],
            {"DEBUG_SOCKET_DIR": str(sockets)},
        ),
    ]
