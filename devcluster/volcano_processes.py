"""Volcano beside a control plane without real nodes: its definitions and its two processes."""

import subprocess
import time
from pathlib import Path

from devcluster.paths import Layout
from devcluster.supervisor import Service

LOG_LEVEL = 2
"""That of a stack's release; from 3 on the scheduler writes a line for each node that is full."""


def apply_definitions(layout: Layout, binaries: Path, definitions: Path) -> None:
    """Applies Volcano's CustomResourceDefinitions, until they are served, and its namespace."""
    kubectl = [str(binaries / "kubectl"), f"--kubeconfig={layout.kubeconfig}"]
    files = [f"--filename={file}" for file in sorted(definitions.glob("*.yaml"))]
    # An API server that ended between accepting a definition's names and serving it takes the
    # second step at the definition's next change only.
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


def volcano_services(layout: Layout, binaries: Path) -> list[Service]:
    """The scheduler and the controllers, with leader election off: there is one of each."""
    common = [f"--kubeconfig={layout.kubeconfig}", "--leader-elect=false", "--logtostderr"]
    sockets = layout.state / "klog"
    layout.scheduler_configuration.parent.mkdir(parents=True, exist_ok=True)
    return [
        Service(
            "vc-scheduler",
            [
                str(binaries / "vc-scheduler"),
                *common,
                # Read when it is written; without it the scheduler has its own default.
                f"--scheduler-conf={layout.scheduler_configuration}",
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
                # The pace that a stack's release of Volcano has by default.
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
