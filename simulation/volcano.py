"""Volcano's CustomResourceDefinitions and processes for a control plane without real nodes."""

import base64
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from simulation.supervisor import Service

_ATTEMPTS = 20
"""Maximum number of attempts to wait for new CRDs."""

LOG_LEVEL = 2
"""Log level of a stack's Volcano release. At higher levels, the scheduler logs every full node."""

FLAGS = "scheduler.flags"


def apply_definitions(
    kubeconfig: Path, binaries: Path, definitions: Path, *, is_restart: bool = True
) -> None:
    """Apply Volcano's CustomResourceDefinitions and namespace; wait until the CRDs are served.

    `is_restart` must be true if an earlier start may have applied them.
    """
    kubectl = [str(binaries / "kubectl"), f"--kubeconfig={kubeconfig}"]
    files = [f"--filename={file}" for file in sorted(definitions.glob("*.yaml"))]
    # If an API server was killed after it accepted a CRD's names but before it served the CRD, it
    # serves the CRD only after the CRD changes. Therefore, change an annotation.
    changed = f"gpu-platform.dev/started={time.time_ns()}"
    commands = [
        ["apply", "--server-side", "--force-conflicts", *files],
        *([["annotate", "--overwrite", changed, *files]] if is_restart else []),
    ]
    for command in commands:
        subprocess.run([*kubectl, *command], check=True, stdout=subprocess.DEVNULL)
    _wait_established([*kubectl, "wait", "--for=condition=Established", "--timeout=60s", *files])
    namespace = '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"volcano-system"}}'
    subprocess.run(
        [*kubectl, "apply", "--server-side", "--filename=-"],
        input=namespace,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _wait_established(command: Sequence[str]) -> None:
    """Run `kubectl wait` until it succeeds. It fails if a new CRD has no conditions yet."""
    for _ in range(_ATTEMPTS - 1):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.5)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Webhooks:
    """Volcano's webhooks, served on a free port of the loopback interface."""

    configurations: Sequence[dict[str, Any]]
    """Webhook configurations as Kubernetes objects."""
    pki: Path
    """Directory of kwokctl's certificates. The admin certificate is valid for 127.0.0.1."""
    port: int

    @classmethod
    def of(cls, file: Path, pki: Path) -> Self:
        """Read webhook configurations; replace references to Volcano's service with local URLs."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
        configurations = json.loads(file.read_text())
        for webhook in (each for entry in configurations for each in entry["webhooks"]):
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": authority}
        return cls(configurations, pki, port)

    @property
    def _paths(self) -> list[str]:
        prefix = f"https://127.0.0.1:{self.port}"
        urls = [each["clientConfig"]["url"] for c in self.configurations for each in c["webhooks"]]
        return [url.removeprefix(prefix) for url in urls]

    def apply(self, kubeconfig: Path, binaries: Path) -> None:
        """Register the webhooks. Requests that match them fail until the webhooks are served."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(self.configurations)}
        kubectl = [str(binaries / "kubectl"), f"--kubeconfig={kubeconfig}"]
        subprocess.run(
            [*kubectl, "apply", "--server-side", "--force-conflicts", "--filename=-"],
            input=json.dumps(items),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def service(self, kubeconfig: Path, binaries: Path) -> Service:
        """Return the process that serves the webhooks."""
        return Service(
            "vc-webhook-manager",
            [
                str(binaries / "vc-webhook-manager"),
                f"--kubeconfig={kubeconfig}",
                "--listen-address=127.0.0.1",
                f"--port={self.port}",
                f"--webhook-url=https://127.0.0.1:{self.port}",
                f"--enabled-admission={','.join(self._paths)}",
                f"--tls-cert-file={self.pki / 'admin.crt'}",
                f"--tls-private-key-file={self.pki / 'admin.key'}",
                f"--ca-cert-file={self.pki / 'ca.crt'}",
                "--logtostderr",
                f"--v={LOG_LEVEL}",
            ],
        )

    def wait(self, seconds: float = 60) -> None:
        """Wait until the webhooks are served. Raise OSError on a timeout."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def minor_version(version: str) -> str:
    """Return the major and minor numbers of a version, such as 1.10 for v1.10.0."""
    return ".".join(version.removeprefix("v").split(".")[:2])


def scheduler_program(binaries: Path, version: str) -> Path:
    """Return the scheduler for a minor version of Volcano, or the default scheduler."""
    program = binaries / f"vc-scheduler-{minor_version(version)}"
    return program if program.is_file() else binaries / "vc-scheduler"


def volcano_services(
    kubeconfig: Path, binaries: Path, configuration: Path, sockets: Path, version: str = ""
) -> list[Service]:
    """Return the scheduler and the controllers, each with one replica and no leader election.

    The scheduler receives additional flags, one per line, from the file `FLAGS` next to its
    configuration.
    """
    common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--logtostderr"]
    configuration.parent.mkdir(parents=True, exist_ok=True)
    flags = configuration.with_name(FLAGS)
    return [
        Service(
            "vc-scheduler",
            [
                str(scheduler_program(binaries, version)),
                *common,
                # The scheduler rereads this file when it changes. If it is missing, the scheduler
                # uses defaults.
                f"--scheduler-conf={configuration}",
                "--enable-healthz=false",
                "--enable-metrics=false",
                f"--v={LOG_LEVEL}",
                *(flags.read_text().split() if flags.exists() else ()),
            ],
            {"DEBUG_SOCKET_DIR": str(sockets)},
        ),
        Service(
            "vc-controller-manager",
            [
                str(binaries / "vc-controller-manager"),
                *common,
                # Defaults of a stack's Volcano release.
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
