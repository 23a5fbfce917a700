"""What the JSON in front of binary tensors says, understood once; and what its answers begin with.

A client sends the same few hundred bytes before each of its tensors, and reading and writing them
takes longer than all else that the event loop does for a small request.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference.engine.interface import Served, TensorSpec
from inference.protocol.blobs import LITTLE, Blobs
from inference.protocol.request import InferRequest, Wanted, check_finite

MOST: Final = 256
"""Plans that are kept."""

LONGEST: Final = 2048
"""Bytes of JSON for which one is kept."""

MOST_HEADS: Final = 16
"""Beginnings of answers that a plan keeps: outputs of texts are of many lengths."""

Head = tuple[object, ...]
"""All that the JSON of an answer depends on: shapes and bytes of its outputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request without its values, all of which lie behind the JSON."""

    identity: str
    tensors: tuple[tuple[int, TensorSpec, tuple[int, ...], str], ...]
    """In the order of the values: bytes, input, shape, and how the field is called."""
    outputs: tuple[Wanted, ...]
    timeout: float | None
    served: Served
    heads: dict[Head, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The JSON of answers whose values all lie behind it."""

    size: int = field(init=False)
    """Bytes of all values; -1 where they need more than to be taken as they are."""

    def __post_init__(self) -> None:
        plain = all(
            LITTLE[spec.datatype].kind in "fiu"
            and size == math.prod(shape) * LITTLE[spec.datatype].itemsize
            for size, spec, shape, _ in self.tensors
        )
        total = sum(size for size, *_ in self.tensors)
        object.__setattr__(self, "size", total if plain else -1)

    def request(self, body: bytes, begin: int) -> InferRequest:
        """The request with the values from there on. Raises InputError as reading JSON would."""
        if len(body) - begin == self.size:
            inputs = self._numbers(body, begin)
        else:
            blobs = Blobs(memoryview(body)[begin:])
            inputs = {
                spec.name: blobs.take(size, spec, shape, name)
                for size, spec, shape, name in self.tensors
            }
            blobs.check_used()
        return InferRequest(self.identity, inputs, self.outputs, self.timeout, self)

    def keep_head(self, key: Head, head: bytes) -> None:
        """Remember how an answer begins."""
        if len(self.heads) < MOST_HEADS:
            self.heads[key] = head

    def _numbers(self, body: bytes, begin: int) -> dict[str, NDArray[Any]]:
        inputs = {}
        for size, spec, shape, name in self.tensors:
            values = np.ndarray(shape, LITTLE[spec.datatype], body, begin)
            inputs[spec.name] = check_finite(values, spec, name)
            begin += size
        return inputs


class Plans:
    """For the model that is served now; all are forgotten with it, and when there are too many."""

    def __init__(self) -> None:
        self._served: Served | None = None
        self._plans: dict[bytes, Plan] = {}

    def get(self, head: bytes, served: Served) -> Plan | None:
        """What was kept for just this JSON."""
        return self._plans.get(head) if served is self._served else None

    def keep(self, head: bytes, plan: Plan) -> None:
        """Remember it, unless the JSON is long."""
        if len(head) > LONGEST:
            return
        if plan.served is not self._served or len(self._plans) >= MOST:
            self._plans.clear()
            self._served = plan.served
        self._plans[head] = plan
