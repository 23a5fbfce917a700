"""After an update that was killed: what it was creating is neither lost nor in the way.

Kubernetes objects are taken over by the next update, since they are applied. A Helm release is
not: Helm refuses to install under a name that a killed installation holds. Its note (a Secret) is
removed here; what it has installed carries the release's name, so that the next one adopts it.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devcluster.deploy.stack import Stack

RELEASE = "kubernetes:helm.sh/v3:Release"


@dataclass(frozen=True)
class Release:
    """A Helm release whose installation was cut off."""

    name: str
    namespace: str


def recover(stack: Stack, kubectl: Sequence[str]) -> int:
    """Clears what a killed update left pending; returns how many operations there were.

    DevclusterError when Pulumi refuses, CalledProcessError when kubectl does.
    """
    pending = stack.pending_operations()
    if not pending:
        return 0
    for release in cut_off(pending):
        labels = f"owner=helm,name={release.name}"
        subprocess.run(
            [*kubectl, "delete", "secret", "-n", release.namespace, f"--selector={labels}"],
            check=True,
            capture_output=True,
        )
    stack.clear_pending_creates()
    return len(pending)


def cut_off(pending: Sequence[dict[str, Any]]) -> Iterator[Release]:
    """The named Helm releases among the operations that were creating something."""
    for operation in pending:
        resource = operation["resource"]
        inputs = resource.get("inputs", {})
        name = inputs.get("name")
        if operation["type"] == "creating" and resource["type"] == RELEASE and name:
            yield Release(name, inputs.get("namespace", "default"))
