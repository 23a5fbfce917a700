"""What protocols ask of an engine, and how it refuses. Knows neither HTTP nor PyTorch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray

from workload.manifest import Manifest

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]
"""Names of the Open Inference Protocol."""

Tensors = Mapping[str, NDArray[Any]]
"""By name, each with the batch first; BYTES are arrays of objects that are `bytes`."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output; -1 in the shape is any size, and the first is the batch."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """The model that answers now."""

    name: str
    manifest: Manifest
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def version(self) -> str:
        """Short name of exactly these weights."""
        return self.manifest.version


class Answer(NamedTuple):
    """The outputs of one request, all of them, and what it took."""

    outputs: Tensors
    served: Served
    queue_seconds: float
    """From arrival until a worker took the batch that it was in."""
    compute_seconds: float
    """Of that whole batch."""
    batch: int
    """Samples in it."""


class InputError(Exception):
    """The request itself is at fault; the message names the field. HTTP: 400."""


class RefusedError(Exception):
    """The request may be good, but cannot be answered now."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which another attempt makes sense."""


class OverloadedError(RefusedError):
    """The queue is full. HTTP: 429."""


class DeadlineError(RefusedError):
    """The request's deadline passed before it was computed; it was not. HTTP: 504."""


class UnavailableError(RefusedError):
    """No model, or the worker that computed it died. HTTP: 503."""


class ReloadError(Exception):
    """The new version cannot be served; the message says why. The old one still is."""


class Engine(Protocol):
    """Everything that a protocol needs. All of it belongs to one event loop."""

    @property
    def served(self) -> Served | None:
        """None before the first model is loaded."""

    @property
    def reason(self) -> str:
        """Why requests should not come; empty when they should."""

    @property
    def draining(self) -> bool:
        """Whether the end has begun: requests are still taken, but none should be sent."""

    async def infer(self, inputs: Tensors, deadline: float | None = None) -> Answer:
        """Compute one request, checked against `served.inputs` by the caller.

        `deadline` is a time of the event loop's clock. When the awaiting task is cancelled the
        request is not computed if it still waits. Raises InputError, OverloadedError,
        DeadlineError, UnavailableError.
        """

    async def reload(self) -> Served:
        """Load what the model's folder holds now beside what is served, then switch.

        Returns the old one when nothing changed. Raises ReloadError; the old one is kept then.
        """

    @property
    def waiting(self) -> int:
        """Samples that no worker has yet: the depth of the queue."""

    @property
    def most(self) -> int:
        """Samples that can wait and be computed at once; with more, some would be refused."""

    @property
    def expected_wait(self) -> float:
        """Seconds until a request that comes now would be begun with."""

    async def start(self) -> None:
        """Begin to look for the model and to load it; returns without waiting for that."""

    def drain(self) -> None:
        """The end has begun: `draining` from now on, with a `reason`; requests are still taken."""

    async def close(self) -> None:
        """End the workers. What still waits is refused with UnavailableError."""
