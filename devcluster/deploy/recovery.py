"""Removal of the pending operations of an interrupted update, which would block the next update.

The next update uses server-side apply, so it adopts the Kubernetes objects that the interrupted
update created. It cannot adopt a Helm release: Helm refuses to install a release while an
installation with the same name is pending. Therefore, this module deletes the Secret in which Helm
stores the pending release. The objects that Helm already installed have annotations with the
release's name, so the next installation adopts them.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devcluster.deploy.stack import Stack

RELEASE = "kubernetes:helm.sh/v3:Release"


@dataclass(frozen=True)
class Release:
    """A Helm release whose installation was interrupted."""

    name: str
    namespace: str


def recover(stack: Stack, pending: Sequence[dict[str, Any]], kubectl: Sequence[str]) -> None:
    """Clear the pending operations of an interrupted update.

    Raises:
        DevclusterError: If a Pulumi command fails.
        CalledProcessError: If a kubectl command fails.
    """
    for release in interrupted_releases(pending):
        labels = f"owner=helm,name={release.name}"
        subprocess.run(
            [*kubectl, "delete", "secret", "-n", release.namespace, f"--selector={labels}"],
            check=True,
            capture_output=True,
        )
    stack.clear_pending_creates()


def interrupted_releases(pending: Sequence[dict[str, Any]]) -> Iterator[Release]:
    """Yield the Helm releases that have an explicit name and whose creation is pending."""
    for operation in pending:
        resource = operation["resource"]
        inputs = resource.get("inputs", {})
        name = inputs.get("name")
        if operation["type"] == "creating" and resource["type"] == RELEASE and name:
            yield Release(name, inputs.get("namespace", "default"))
