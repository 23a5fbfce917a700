"""The program that runs where kwokctl starts kwok: kwok, after it has been given its nodes back.

kwok holds each simulated node by a lease, under a name that is new with every process. So one that
is started again, by `make up` or after a crash, leaves the nodes and their pods alone until the
leases of the one before run out, which takes minutes: pods stay Pending and are never removed.
"""

import shlex
from pathlib import Path

from devcluster.paths import Layout

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def write(layout: Layout, binaries: Path) -> None:
    """Writes it, for a cluster all of whose nodes are kwok's, since kubelets have leases, too."""
    kubeconfig = layout.pki.parent / "kubeconfig.yaml"
    kubectl = [str(binaries / "kubectl"), f"--kubeconfig={kubeconfig}", "delete", f"--raw={LEASES}"]
    lines = [
        "#!/bin/sh",
        # kwokctl asks for the version before there is an API server.
        f'[ "$1" = --version ] || until {shlex.join(kubectl)} >/dev/null 2>&1; do sleep 0.2; done',
        f'exec {shlex.quote(str(binaries / "kwok"))} "$@"',
    ]
    file = program(layout)
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o755)


def program(layout: Layout) -> Path:
    """Where it lies."""
    return layout.control_plane / "start-kwok"
