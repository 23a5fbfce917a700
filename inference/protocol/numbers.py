"""Numbers in JSON to arrays, without a Python object for each of them.

simdjson reads them about eight times as fast as a parser that makes lists, which also is for how
long a large body keeps the event loop from answering probes.
"""

import math
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from simdjson import Array, Object, Parser

from inference.engine.datatypes import NUMPY
from inference.engine.interface import InputError, TensorSpec
from inference.protocol.request import check_finite, check_size

SHORT: Final = 8
"""Numbers of a row below which it is quicker to write the lists again, and to look at nothing but
their brackets and commas, than to look at each row."""

_VALUES: Final = b"0123456789.eE+-truefals"
"""What is left out for that: numbers, true and false. Strings might have brackets in them."""


def parse_object(body: bytes) -> Object:
    """Parse the body as a JSON object. Raises InputError."""
    try:
        # A parser of its own: the memory of a large body goes with it.
        document: object = Parser().parse(body)
    except ValueError as error:
        raise InputError(f"the body is no JSON: {error}") from None
    except RuntimeError as error:
        raise InputError(f"the body is no JSON that can be read: {error}") from None
    return object_of(document, "the body")


def object_of(value: object, field: str) -> Object:
    """Raises InputError unless it is an object."""
    if not isinstance(value, Object):
        raise InputError(f"{field} must be an object")
    return value


def array_of(data: object, spec: TensorSpec, shape: tuple[int, ...], field: str) -> NDArray[Any]:
    """Values of `shape`, that are given flat or nested in just this shape. Raises InputError."""
    if not isinstance(data, Array):
        raise InputError(f"{field} must be a list of {_kind(spec)}")
    values = _flat(data, spec, field)
    if len(data) and isinstance(data[0], Array):
        _check_nesting(data, shape, values.size, field, spec.datatype != "BYTES")
    elif len(data) != values.size:
        raise InputError(f"{field} has rows of different lengths")
    check_size(values.size, shape, field)
    return values.reshape(shape)


def _nested_shape(data: Array) -> tuple[int, ...]:
    """The shape of a nested list, told by the first entry of each level."""
    sizes: list[int] = []
    level: object = data
    while isinstance(level, Array):
        sizes.append(len(level))
        level = level[0] if len(level) else None
    return tuple(sizes)


def _flat(data: Array, spec: TensorSpec, field: str) -> NDArray[Any]:
    dtype = NUMPY[spec.datatype]
    if spec.datatype == "BYTES":
        return _objects(data, str, spec, field)
    if spec.datatype == "BOOL":
        return _objects(data, bool, spec, field).astype(dtype)
    kind = {"f": "d", "i": "i", "u": "u"}[dtype.kind]
    try:
        buffer = data.as_buffer(of_type=kind)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{field} must have nothing but {_kind(spec)} in it") from None
    wide = np.frombuffer(buffer, {"d": np.float64, "i": np.int64, "u": np.uint64}[kind])
    if wide.dtype == dtype:
        return wide
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return check_finite(wide.astype(dtype), spec, field)
    narrow = wide.astype(dtype)
    if not (narrow == wide).all():
        raise InputError(f"{field} has a number that does not fit {spec.datatype}")
    return narrow


def _objects(data: Array, kind: type, spec: TensorSpec, field: str) -> NDArray[Any]:
    flat: list[Any] = []
    waiting: list[Any] = data.as_list()[::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value))
        elif type(value) is kind:
            flat.append(value.encode() if isinstance(value, str) else value)
        else:
            raise InputError(f"{field} must have nothing but {_kind(spec)} in it")
    values = np.empty(len(flat), np.object_)
    values[:] = flat
    return values


def _check_nesting(
    data: Array, shape: tuple[int, ...], count: int, field: str, numbers: bool
) -> None:
    """Raises InputError unless lists of `count` values are nested as the shape says."""
    found = _nested_shape(data)
    # Before the rows are looked at, which takes time.
    if math.prod(found) != count:
        raise InputError(f"{field} has rows of different lengths")
    if found != shape:
        raise InputError(f"{field} is nested as {list(found)}, but its shape is {list(shape)}")
    if numbers and found[-1] < SHORT:
        written = cast(bytes, data.mini)
        if written.translate(None, _VALUES) != _structure(found):
            raise InputError(f"{field} has rows of different lengths")
        return
    level: list[Any] = [data]
    for depth, size in enumerate(found, 1):
        if any(not isinstance(entry, Array) or len(entry) != size for entry in level):
            raise InputError(f"{field} has rows of different lengths")
        if depth < len(found):
            level = [inner for entry in level for inner in entry]


def _structure(shape: tuple[int, ...]) -> bytes:
    """The brackets and commas of lists that are nested so, without a space."""
    inner = b""
    for size in reversed(shape):
        inner = b"[" + (inner + b",") * (size - 1) + inner + b"]"
    return inner


def _kind(spec: TensorSpec) -> str:
    if spec.datatype == "BYTES":
        return "strings"
    if spec.datatype == "BOOL":
        return "truth values"
    return "numbers" if spec.datatype.startswith("FP") else "whole numbers"
