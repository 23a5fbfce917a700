"""Validation by the API server, without which a preview shows less than an update would do.

The provider asks the API server for the result of each change (server-side dry-run). If the user
may not create and patch objects, it compares manifests only, and does not report that.
"""

import subprocess
from collections.abc import Sequence
from typing import Any, Final

from gitops.engine import Stack
from gitops.stack_file import document, section

_VERBS: Final = ("create", "patch")
_SECONDS: Final = 20


def notices(stack: Stack) -> tuple[str, ...]:
    """Return why the API server has not validated a preview; nothing if it has."""
    configuration = document(stack.file)
    if section(configuration, "cluster").get("render_to") is not None:
        return ()
    namespace = section(configuration, "tenancy").get("namespace")
    options = kubectl_options(configuration)
    if isinstance(namespace, str):
        options += ["--namespace", namespace]
    answers = {verb: _allowed(verb, options) for verb in _VERBS}
    denied = [verb for verb, answer in answers.items() if answer == "no"]
    if denied:
        verbs = " and ".join(f"`{verb}`" for verb in denied)
        return (
            f"Not validated by the API server: this user may not {verbs} objects, so the preview "
            "shows changed manifests, but not what the API server would refuse or replace.",
        )
    unknown = next((answer for answer in answers.values() if answer != "yes"), None)
    if unknown is None:
        return ()
    return (f"It is unknown whether the API server validated this preview: {unknown}",)


def kubectl_options(configuration: dict[str, Any]) -> list[str]:
    """Return the options with which kubectl uses the cluster of a stack's configuration."""
    cluster = section(configuration, "cluster")
    found = []
    for option in ("context", "kubeconfig"):
        value = cluster.get(option)
        if isinstance(value, str) and value != "in-cluster":
            found += [f"--{option}", value]
    return found


def _allowed(verb: str, options: Sequence[str]) -> str:
    """Return `yes`, `no`, or the reason why neither is known."""
    command = ["kubectl", "auth", "can-i", verb, "deployments.apps", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        return "`kubectl` is not on the PATH."
    except subprocess.TimeoutExpired:
        return f"`kubectl auth can-i` did not answer within {_SECONDS} seconds."
    answer = done.stdout.strip().partition(" ")[0]
    return answer if answer in ("yes", "no") else f"{done.stderr.strip() or 'no answer.'}"
