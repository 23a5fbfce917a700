"""Recovery from an interrupted update, whose pending operations would block the next update.

The next update uses server-side apply, so it adopts the Kubernetes objects that the interrupted
update created. It cannot adopt a Helm release: Helm refuses to install or upgrade a release while
another operation on this release is pending. Therefore, this module deletes the Secret in which
Helm stores the pending revision. The objects that Helm already installed have annotations with the
release's name, so the next installation adopts them.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devcluster.deploy.stack import Stack

RELEASE = "kubernetes:helm.sh/v3:Release"
_SELECTOR_SUFFIXES = {"creating": "", "updating": ",status=pending-upgrade"}
"""Maps the type of a pending operation to a suffix of the label selector.

With an empty suffix, the Secrets of all revisions are deleted.
"""


@dataclass(frozen=True)
class Release:
    """A Helm release whose installation or upgrade was interrupted."""

    namespace: str
    selector: str
    """Label selector of the Secrets to delete."""


def recover(stack: Stack, pending: Sequence[dict[str, Any]], kubectl: Sequence[str]) -> None:
    """Clear the pending operations of an interrupted update.

    Raises:
        DevclusterError: If a Pulumi command fails.
        CalledProcessError: If a kubectl command fails.
    """
    for release in interrupted_releases(pending):
        selection = ["-n", release.namespace, f"--selector={release.selector}"]
        subprocess.run([*kubectl, "delete", "secret", *selection], check=True, capture_output=True)
    stack.clear_pending_creates()


def interrupted_releases(pending: Sequence[dict[str, Any]]) -> Iterator[Release]:
    """Yield the explicitly named Helm releases whose creation or update is pending."""
    for operation in pending:
        resource = operation["resource"]
        inputs = resource.get("inputs", {})
        name = inputs.get("name")
        if operation["type"] in _SELECTOR_SUFFIXES and resource["type"] == RELEASE and name:
            selector = f"owner=helm,name={name}{_SELECTOR_SUFFIXES[operation['type']]}"
            yield Release(inputs.get("namespace", "default"), selector)
