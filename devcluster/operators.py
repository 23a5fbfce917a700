"""Operators and base images that a stack requires in addition to the default cluster."""

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import DevclusterError
from devcluster.images.base_image import Base
from devcluster.images.catalog import BASES, KUBECTL, ToolImage
from devcluster.toolchain.builder import Report
from devcluster.toolchain.pins import OPERATORS, Operator
from kube.kinds import KINDS

NAMESPACES: Final[Mapping[str, Sequence[str]]] = {
    "training-operator": ("kubeflow",),
    "trainer": ("jobset-system", "kubeflow-system"),
    "kuberay": ("ray-system",),
    "lws": ("lws-system",),
}
"""Maps operators to the namespaces that their manifests create."""

READY_SECONDS: Final = 180


@dataclass(frozen=True)
class Requirements:
    """Operators to run in the cluster, images for its registry, and Volcano's version."""

    operators: tuple[Operator, ...] = ()
    bases: tuple[Base, ...] = ()
    tools: tuple[ToolImage, ...] = ()
    volcano: str = ""
    """Version of Volcano for simulated nodes; empty selects the default."""


def stack_requirements(file: Path, registry: str) -> Requirements:
    """Return the operators and images that a stack's configuration requires.

    Unknown keys are ignored, because the preview reports them. Raise DevclusterError if the file
    cannot be read or is not YAML.
    """
    try:
        document = yaml.safe_load(file.read_text("utf-8"))
        kinds = {value for value in _values(document, "kind") if isinstance(value, str)}
    except RecursionError:
        raise DevclusterError(
            f"{file}: a YAML alias refers to a mapping that contains it"
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DevclusterError(f"{file} cannot be read: {error}") from error
    needed = {kind.operator for name, kind in KINDS.items() if name in kinds}
    if any(str(nodes).isdecimal() and int(nodes) > 1 for nodes in _values(document, "nnodes")):
        needed.add("lws")
    images = set(map(str, _values(document, "base_image")))
    arguments = [each for each in _values(document, "args") if isinstance(each, dict)]
    images.update(str(value) for each in arguments for value in each.values())
    return Requirements(
        tuple(operator for operator in OPERATORS if operator in needed),
        tuple(base for base in BASES if f"{registry}/{base.reference}" in images),
        (KUBECTL,) if f"{registry}/{KUBECTL.reference}" in images else (),
    )


def _values(tree: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key at any depth."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from _values(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _values(value, key)


def install(
    kubectl: Sequence[str], directories: Mapping[str, Sequence[Path]], report: Report
) -> None:
    """Apply the manifests of each operator and wait until its Deployments are available.

    Raise DevclusterError with kubectl's message if a command fails.
    """
    for operator, parts in directories.items():
        for directory in parts:
            report(f"{operator}: applying {directory.name}")
            _run(
                [
                    *kubectl,
                    "apply",
                    "--server-side",
                    "--force-conflicts",
                    f"--kustomize={directory}",
                ]
            )
    for namespace in _namespaces(directories):
        report(f"waiting for the pods in {namespace}")
        wait = ["wait", "--for=condition=Available", "deployment", "--all"]
        _run([*kubectl, *wait, f"--namespace={namespace}", f"--timeout={READY_SECONDS}s"])


def _namespaces(operators: Collection[str]) -> list[str]:
    return [namespace for operator in operators for namespace in NAMESPACES[operator]]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise DevclusterError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
