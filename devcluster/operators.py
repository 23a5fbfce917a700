"""Operators of Kubeflow's kinds of job, in pods of the embedded cluster."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster.errors import DevclusterError
from devcluster.toolchain import Operator
from devcluster.toolchain.progress import Report

NAMESPACES: Final[Mapping[Operator, Sequence[str]]] = {
    "training-operator": ("kubeflow",),
    "trainer": ("jobset-system", "kubeflow-system"),
}
"""Where their manifests put them."""

READY_SECONDS: Final = 180


def install(
    kubectl: Sequence[str],
    folders: Mapping[Operator, Sequence[Path]],
    report: Report,
) -> None:
    """Applies the manifests of each and waits until its webhooks answer.

    Raises DevclusterError with what kubectl or the pods say.
    """
    for operator, parts in folders.items():
        for folder in parts:
            report(f"{operator}: applying {folder.name}")
            _run([*kubectl, "apply", "--server-side", "--force-conflicts", f"--kustomize={folder}"])
    for namespace in _namespaces(folders):
        report(f"waiting for the pods in {namespace}")
        wait = ["wait", "--for=condition=Available", "deployment", "--all"]
        _run([*kubectl, *wait, f"--namespace={namespace}", f"--timeout={READY_SECONDS}s"])


def _namespaces(operators: Collection[Operator]) -> list[str]:
    return [namespace for operator in operators for namespace in NAMESPACES[operator]]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise DevclusterError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
