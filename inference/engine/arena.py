"""Arrays in memory that two processes share: one writes, the other reads.

The memory has no name (memfd): nothing is left behind when both processes are killed, and neither
/dev/shm nor its limit of size is touched.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import DupFd
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference.engine.datatypes import NAMES, NUMPY
from inference.engine.interface import Datatype

ALIGNMENT: Final = 64
"""Bytes: a cache line, and what vector instructions like best."""

SMALLEST: Final = 1 << 16
"""Bytes of an arena; it is doubled when more is needed."""

BYTE: Final = np.dtype(np.uint8)

Part = Sequence[NDArray[Any]]
"""Arrays of one name that become one, the first dimension of each after the other's."""

Placed = tuple[str, Datatype, tuple[int, ...], int, int]
"""Name, type, shape, offset and bytes of one array in the arena; JSON makes lists of it."""


class Arena:
    """One direction of one slot. Only the writer makes it larger; the reader follows.

    May be an argument of a process that is being started: that is how the memory gets there.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map(os.fstat(descriptor).st_size)

    def __reduce__(self) -> tuple[Callable[..., "Arena"], tuple[Any, ...]]:
        return _opened, (DupFd(self._descriptor),)

    def put(self, arrays: Mapping[str, Part]) -> list[Placed]:
        """Copy arrays into the arena, over what was there; tells where they are."""
        placed: list[Placed] = []
        packed: list[Part] = []
        end = 0
        for name, parts in arrays.items():
            first = parts[0]
            datatype = NAMES[first.dtype]
            shape = (sum(len(part) for part in parts), *first.shape[1:])
            written = pack(parts) if datatype == "BYTES" else parts
            size = sum(part.nbytes for part in written)
            placed.append((name, datatype, shape, end, size))
            packed.append(written)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._grow(end)
        for (_, datatype, shape, offset, size), written in zip(placed, packed, strict=True):
            inside = (size,) if datatype == "BYTES" else shape
            np.concatenate(written, out=self._view(inside, written[0].dtype, offset))
        return placed

    def get(self, placed: Sequence[Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """The arrays where `put` said, not copied: valid until the next `put`."""
        end = max((offset + size for *_, offset, size in placed), default=0)
        if end > self._size:
            self._map(os.fstat(self._descriptor).st_size)
        arrays: dict[str, NDArray[Any]] = {}
        for name, datatype, shape, offset, size in placed:
            if datatype == "BYTES":
                arrays[name] = unpack(self._view((size,), BYTE, offset), tuple(shape))
            else:
                arrays[name] = self._view(tuple(shape), NUMPY[datatype], offset)
        return arrays

    def close(self) -> None:
        """Give the memory back; arrays that are still looked at keep theirs."""
        os.close(self._descriptor)
        del self._memory

    def _view(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def _grow(self, needed: int) -> None:
        if needed <= self._size:
            return
        size = max(self._size, SMALLEST)
        while size < needed:
            size *= 2
        os.ftruncate(self._descriptor, size)
        self._map(size)

    def _map(self, size: int) -> None:
        # Not resized in place: an array may still look at the old mapping, which then stays.
        self._memory = mmap.mmap(self._descriptor, size)
        self._size = size


def _opened(descriptor: Any) -> Arena:
    return Arena(descriptor.detach())


def new_arena() -> Arena:
    """Memory of its own, empty."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("inference")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, SMALLEST)
    return Arena(descriptor)


def pack(parts: Part) -> Part:
    """Arrays of `bytes` as one of UINT8: the length of each as 4 bytes, then all of them."""
    elements: list[bytes] = [element for part in parts for element in part.ravel().tolist()]
    lengths = np.fromiter(map(len, elements), np.uint32, len(elements))
    joined = np.frombuffer(b"".join(elements), np.uint8)
    return [np.concatenate([lengths.view(np.uint8), joined])]


def unpack(raw: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """What was packed."""
    count = int(np.prod(shape))
    ends = raw[: 4 * count].view(np.uint32).cumsum(dtype=np.int64).tolist()
    joined = raw[4 * count :].tobytes()
    elements = np.empty(count, np.object_)
    begin = 0
    for index, end in enumerate(ends):
        elements[index] = joined[begin:end]
        begin = end
    return elements.reshape(shape)
