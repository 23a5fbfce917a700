"""What a stack asks of the embedded cluster beyond what it always has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.images.base_image import BASES, Base
from devcluster.toolchain import OPERATORS, Operator
from kube.kinds import KINDS


@dataclass(frozen=True)
class Demands:
    """Operators that run in the cluster, and base images that are in its registry."""

    operators: tuple[Operator, ...] = ()
    bases: tuple[Base, ...] = ()


def of_stack(file: Path, registry: str) -> Demands:
    """What the configuration in a stack's file needs; its mistakes are the stack's to tell."""
    document = yaml.safe_load(file.read_text())
    kinds = {value for value in _values(document, "kind") if isinstance(value, str)}
    needed = {kind.operator for name, kind in KINDS.items() if name in kinds}
    images = set(map(str, _values(document, "base_image")))
    return Demands(
        tuple(operator for operator in OPERATORS if operator in needed),
        tuple(base for base in BASES if f"{registry}/{base.reference}" in images),
    )


def _values(tree: Any, key: str) -> Iterator[Any]:
    """Everything that stands under a key, however deep."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from _values(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _values(value, key)
