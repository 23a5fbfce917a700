"""Types shared by protocols, engine and handlers, independent of HTTP and PyTorch."""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from workload.manifest import Manifest

Integer = Literal["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
Datatype = Literal[Integer, "BOOL", "FP16", "FP32", "FP64", "BYTES"]
"""Element types of the Open Inference Protocol."""

NUMPY: Final[dict[Datatype, np.dtype[Any]]] = {
    name: np.dtype(name.lower().replace("fp", "float").replace("bytes", "object")).newbyteorder("<")
    for name in get_args(Datatype)
}
"""NumPy types by datatype, little-endian as the protocol requires."""

DATATYPES: Final[dict[np.dtype[Any], Datatype]] = {dtype: name for name, dtype in NUMPY.items()}

Tensors = Mapping[str, NDArray[Any]]
"""Arrays by tensor name, batch dimension first. BYTES are object arrays of `bytes`."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output. -1 in the shape means any size; the first dimension is the batch."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """The loaded model."""

    name: str
    manifest: Manifest
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plans: dict[bytes, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    """Cache of parsed requests, managed by the protocol."""

    @property
    def version(self) -> str:
        """Short identifier of the weights."""
        return self.manifest.version


class Answer(NamedTuple):
    """The outputs of one request, with timings."""

    outputs: Tensors
    served: Served
    queue_seconds: float
    """Time from arrival until the request's first batch was sent to a worker."""
    compute_seconds: float
    """Compute time of the request's batches."""
    batch: int
    """Number of samples in the request's largest batch."""


class InputError(Exception):
    """The request is invalid; the message names the field. HTTP 400."""


class RejectedError(Exception):
    """The request may be valid, but it cannot be answered now."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds to wait before the next attempt."""


class OverloadedError(RejectedError):
    """The queue or the memory is full, or the wait would exceed the deadline. HTTP 429."""


class DeadlineError(RejectedError):
    """The request was not computed before its deadline. HTTP 504."""


class UnavailableError(RejectedError):
    """The server cannot compute the request, for example because no model is loaded. HTTP 503."""


class Observer:
    """Observer of engine events, called in the event loop. The base class ignores the events."""

    def batch(self, samples: int, seconds: float) -> None:
        """Handle a computed batch of `samples` samples, which took `seconds` to compute."""

    def worker_ended(self, reason: str) -> None:
        """Handle the unexpected exit of a worker, which is then replaced."""


def pack_texts(texts: Iterable[bytes]) -> bytes:
    """Return the binary form of BYTES elements: each is preceded by its length."""
    return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))


def unpack_texts(content: memoryview, shape: tuple[int, ...], field: str) -> NDArray[Any]:
    """Reverse `pack_texts`. Raise InputError, which names `field`, on failure."""
    found: list[bytes] = []
    needed = math.prod(shape)
    offset = 0
    while offset < len(content):
        if len(found) == needed:
            raise InputError(
                f"{field} has more values than its shape {list(shape)} allows ({needed})"
            )
        if offset + 4 > len(content):
            raise InputError(f"{field} ends inside the length prefix of string {len(found)}")
        (length,) = struct.unpack_from("<I", content, offset)
        offset += 4
        if offset + length > len(content):
            raise InputError(f"{field} ends inside string {len(found)}, which has {length} bytes")
        found.append(bytes(content[offset : offset + length]))
        offset += length
    check_count(len(found), shape, field)
    return np.array(found, np.object_).reshape(shape)


def check_count(found: int, shape: tuple[int, ...], field: str) -> None:
    """Raise InputError unless the number of values matches the shape."""
    needed = math.prod(shape)
    if found != needed:
        raise InputError(
            f"{field} has {found} values, but its shape is {list(shape)}, which needs {needed}"
        )
