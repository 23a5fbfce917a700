"""What the JSON in front of binary tensors says, understood once.

A client sends the same few hundred bytes before each of its tensors, and reading them takes longer
than all else that the event loop does for a small request.
"""

from dataclasses import dataclass
from typing import Final

from inference.engine.interface import Served, TensorSpec
from inference.protocol.blobs import Blobs
from inference.protocol.request import InferRequest, Wanted

MOST: Final = 256
"""Plans that are kept."""

LONGEST: Final = 2048
"""Bytes of JSON for which one is kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request without its values, all of which lie behind the JSON."""

    identity: str
    tensors: tuple[tuple[int, TensorSpec, tuple[int, ...], str], ...]
    """In the order of the values: bytes, input, shape, and how the field is called."""
    outputs: tuple[Wanted, ...]
    timeout: float | None

    def request(self, blobs: Blobs) -> InferRequest:
        """The request with these values. Raises InputError as reading the JSON would."""
        inputs = {
            spec.name: blobs.take(size, spec, shape, field)
            for size, spec, shape, field in self.tensors
        }
        blobs.check_used()
        return InferRequest(self.identity, inputs, self.outputs, self.timeout)


class Plans:
    """For the model that is served now; all are forgotten with it, and when there are too many."""

    def __init__(self) -> None:
        self._served: Served | None = None
        self._plans: dict[bytes, Plan] = {}

    def get(self, head: bytes, served: Served) -> Plan | None:
        """What was kept for just this JSON."""
        return self._plans.get(head) if served is self._served else None

    def keep(self, head: bytes, served: Served, plan: Plan) -> None:
        """Remember it, unless the JSON is long."""
        if len(head) > LONGEST:
            return
        if served is not self._served or len(self._plans) >= MOST:
            self._plans.clear()
            self._served = served
        self._plans[head] = plan
