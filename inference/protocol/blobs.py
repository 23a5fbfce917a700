"""Values of tensors as bytes: little-endian and row by row; BYTES have their lengths before them.

Source: Triton's extension_binary_data.md.
"""

import math
import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference.engine.datatypes import NUMPY
from inference.engine.interface import Datatype, InputError, TensorSpec
from inference.protocol.request import check_finite, check_size, show

LITTLE: Final[dict[Datatype, np.dtype[Any]]] = {
    name: dtype.newbyteorder("<") for name, dtype in NUMPY.items()
}
"""As values lie in a message, whatever the machine."""


class Blobs:
    """The bytes behind the JSON of a request, taken in the order of its inputs."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._taken = 0
        self.tensors: list[tuple[int, TensorSpec, tuple[int, ...], str]] = []
        """What was taken: bytes, input, shape and the field that told them."""

    def take(
        self, size: object, spec: TensorSpec, shape: tuple[int, ...], field: str
    ) -> NDArray[Any]:
        """The next `size` bytes as an array. Raises InputError that names `field`."""
        left = len(self._content) - self._taken
        if type(size) is not int or not 0 <= size <= left:
            raise InputError(f"{field} is {show(size)}, but {left} bytes are left behind the JSON")
        content = self._content[self._taken : self._taken + size]
        self._taken += size
        self.tensors.append((size, spec, shape, field))
        return from_blob(content, spec, shape, field)

    def check_used(self) -> None:
        """Raises InputError when bytes are left that belong to no input."""
        left = len(self._content) - self._taken
        if left:
            raise InputError(f"{left} bytes behind the JSON belong to no input")


def from_blob(
    content: memoryview | bytes, spec: TensorSpec, shape: tuple[int, ...], field: str
) -> NDArray[Any]:
    """An array of `shape`, that must not be changed. Raises InputError that names `field`."""
    if spec.datatype == "BYTES":
        return _strings(content, shape, field)
    dtype = LITTLE[spec.datatype]
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{field} has {len(content)} bytes, but shape {list(shape)} of {spec.datatype} needs "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    if spec.datatype == "BOOL":
        values = np.frombuffer(content, np.uint8)
        if values.max(initial=0) > 1:
            raise InputError(f"{field} has a byte other than 0 and 1 for BOOL")
        return values.view(np.bool_).reshape(shape)
    return check_finite(np.frombuffer(content, dtype), spec, field).reshape(shape)


def to_blob(values: NDArray[Any], spec: TensorSpec) -> bytes:
    """The bytes of an output."""
    if spec.datatype == "BYTES":
        return b"".join(
            part for value in values.ravel() for part in (struct.pack("<I", len(value)), value)
        )
    return values.astype(LITTLE[spec.datatype], copy=False).tobytes()


def _strings(content: memoryview | bytes, shape: tuple[int, ...], field: str) -> NDArray[Any]:
    found: list[bytes] = []
    place = 0
    while place < len(content):
        if place + 4 > len(content):
            raise InputError(f"{field} ends within the length of string {len(found)}")
        (length,) = struct.unpack_from("<I", content, place)
        place += 4
        if place + length > len(content):
            raise InputError(f"{field} ends within string {len(found)}, of {length} bytes")
        found.append(bytes(content[place : place + length]))
        place += length
    check_size(len(found), shape, field)
    values = np.empty(len(found), np.object_)
    values[:] = found
    return values.reshape(shape)
