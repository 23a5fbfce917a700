"""Tensors of requests and responses: checks of names, types and shapes, and conversion of values.

simdjson converts JSON numbers without creating a Python object for each, which is about eight times
as fast as building lists. This matters because parsing a large body blocks the event loop.

Binary values are little-endian and in row-major order; each BYTES element is preceded by its length
(source: Triton's extension_binary_data.md).
"""

import json
import math
from collections.abc import Iterable
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from simdjson import Array, Object, Parser

from inference.engine.interface import (
    NUMPY,
    InputError,
    TensorSpec,
    check_count,
    pack_texts,
    unpack_texts,
)

BinaryTensor = tuple[Any, TensorSpec, tuple[int, ...], str]
"""An input whose values follow the JSON: size in bytes, specification, shape, and the path of the
size field for error messages."""

MAX_SHOWN: Final = 80
"""Maximum number of characters of a value in an error message."""

MAX_ITEMS: Final = 16
"""Maximum number of items of a list in an error message."""

SHORT_ROW: Final = 8
"""Row length below which serializing the lists again and comparing only their brackets and commas
is faster than checking each row."""

_VALUES: Final = b"0123456789.eE+-truefals"
"""Characters of numbers and booleans, which are removed before brackets and commas are compared.

Lists of strings are always checked row by row, because strings may contain brackets.
"""


def find_spec(name: object, specs: tuple[TensorSpec, ...], field: str) -> TensorSpec:
    """Return the input or output with this name. Raise InputError if there is none."""
    for spec in specs:
        if spec.name == name:
            return spec
    names = " or ".join(repr(spec.name) for spec in specs)
    raise InputError(f"{field} is {show(name)}: it must be {names}")


def check_shape(shape: object, spec: TensorSpec, field: str) -> tuple[int, ...]:
    """Return the shape as a tuple.

    Raise InputError unless it has at least one sample and matches the specification of the input.
    """
    # Nested lists stay as they are: converting them could exceed the recursion limit.
    sizes = list(shape) if isinstance(shape, Array) and len(shape) <= MAX_ITEMS else shape
    if isinstance(sizes, list) and len(sizes) == len(spec.shape):
        for size, wanted in zip(sizes, spec.shape, strict=True):
            if type(size) is not int or size < 1 or wanted not in (-1, size):
                break
        else:
            return tuple(sizes)
    wanted_shape = ", ".join(["N", *("any" if n == -1 else str(n) for n in spec.shape[1:])])
    raise InputError(
        f"{field} is {show(shape)}: it must be [{wanted_shape}], where N is at least 1"
    )


def check_finite(values: NDArray[Any], spec: TensorSpec, field: str) -> NDArray[Any]:
    """Return the values. Raise InputError if one is infinite or NaN."""
    # Searching the bytes of the boolean array takes half as long as `all` for small tensors.
    if values.dtype.kind == "f" and b"\0" in np.isfinite(values).tobytes():
        raise InputError(f"{field} has a value that is NaN or too large for {spec.datatype}")
    return values


def parse_object(body: bytes) -> Object:
    """Parse the body as a JSON object. Raise InputError on failure."""
    try:
        # Use a new parser each time, so that the memory of a large body is released with it.
        document: object = Parser().parse(body)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the body is not valid JSON: {error}") from None
    return as_object(document, "the body")


def as_object(value: object, field: str) -> Object:
    """Return the value. Raise InputError unless it is a JSON object."""
    if not isinstance(value, Object):
        raise InputError(f"{field} must be an object")
    return value


def from_json(data: object, spec: TensorSpec, shape: tuple[int, ...], field: str) -> NDArray[Any]:
    """Return the values of a list that is flat or has this shape. Raise InputError on failure."""
    if not isinstance(data, Array):
        raise InputError(f"{field} must be a list of {_kind(spec)}")
    values = _flat(data, spec, field)
    if len(data) and isinstance(data[0], Array):
        _check_nesting(data, shape, values.size, field, spec.datatype != "BYTES")
    elif len(data) != values.size:
        raise InputError(f"{field} has rows of different lengths")
    check_count(values.size, shape, field)
    return values.reshape(shape)


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
        raise InputError(f"{field} must contain only {_kind(spec)}") from None
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
    try:
        stack: list[Any] = data.as_list()[::-1]
    except RecursionError:
        raise InputError(f"{field} is nested too deeply") from None
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        elif type(value) is kind:
            flat.append(value.encode() if isinstance(value, str) else value)
        else:
            raise InputError(f"{field} must contain only {_kind(spec)}")
    return np.array(flat, np.object_)


def _check_nesting(
    data: Array, shape: tuple[int, ...], count: int, field: str, numbers: bool
) -> None:
    """Raise InputError unless lists of `count` values are nested as the shape requires."""
    found = _nested_shape(data)
    # Compare the counts first, because checking the rows takes longer.
    if math.prod(found) != count:
        raise InputError(f"{field} has rows of different lengths")
    if found != shape:
        if len(found) > MAX_ITEMS:
            raise InputError(
                f"{field} is nested {len(found)} levels deep, but its shape is {list(shape)}"
            )
        raise InputError(f"{field} is nested as {list(found)}, but its shape is {list(shape)}")
    if numbers and found[-1] < SHORT_ROW:
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


def _nested_shape(data: Array) -> tuple[int, ...]:
    """Return the shape of a nested list, from the first entry of each level."""
    sizes: list[int] = []
    level: object = data
    while isinstance(level, Array):
        sizes.append(len(level))
        level = level[0] if len(level) else None
    return tuple(sizes)


def _structure(shape: tuple[int, ...]) -> bytes:
    """Return the brackets and commas of lists nested in this shape."""
    inner = b""
    for size in reversed(shape):
        inner = b"[" + (inner + b",") * (size - 1) + inner + b"]"
    return inner


def _kind(spec: TensorSpec) -> str:
    numbers = "numbers" if spec.datatype.startswith("FP") else "integers"
    return {"BYTES": "strings", "BOOL": "booleans"}.get(spec.datatype, numbers)


def read_binary(
    tensors: Iterable[BinaryTensor], body: bytes | bytearray, begin: int
) -> dict[str, NDArray[Any]]:
    """Return the values after the JSON, which ends at `begin`, as views of the body.

    Raise InputError unless they have the stated sizes.
    """
    inputs = {}
    for size, spec, shape, field in tensors:
        remaining = len(body) - begin
        if type(size) is not int or not 0 <= size <= remaining:
            raise InputError(
                f"{field} is {show(size)}, but {remaining} bytes remain after the JSON"
            )
        if spec.datatype == "BYTES":
            content = memoryview(body)[begin : begin + size]
            inputs[spec.name] = unpack_texts(content, shape, field)
        else:
            dtype = NUMPY[spec.datatype]
            needed = math.prod(shape) * dtype.itemsize
            if size != needed:
                raise InputError(
                    f"{field} has {size} bytes, but shape {list(shape)} of {spec.datatype} needs "
                    f"{needed}"
                )
            values: NDArray[Any] = np.ndarray(shape, dtype, body, begin)
            if spec.datatype == "BOOL" and values.view(np.uint8).max(initial=0) > 1:
                raise InputError(f"{field} has a byte other than 0 and 1 for BOOL")
            inputs[spec.name] = check_finite(values, spec, field)
        begin += size
    if begin < len(body):
        raise InputError(f"{len(body) - begin} bytes after the JSON belong to no input")
    return inputs


def to_binary(values: NDArray[Any], spec: TensorSpec) -> memoryview:
    """Return the binary form of an output, without copying the values if possible."""
    if spec.datatype == "BYTES":
        return memoryview(pack_texts(values.ravel()))
    array = values.astype(NUMPY[spec.datatype], order="C", copy=False)
    return array.data if array.size else memoryview(b"")


def show(value: object) -> str:
    """Return a short text for a value in an error message, so that the client can recognize it."""
    if isinstance(value, Array):
        if len(value) > MAX_ITEMS or any(isinstance(each, Object | Array) for each in value):
            return f"a list of {_count(len(value), 'item')}"
        value = value.as_list()
    elif isinstance(value, Object):
        return f"an object with {_count(len(value), 'field')}"
    # Shorten a string before converting it, because it may be megabytes long.
    if isinstance(value, str):
        value = value[:MAX_SHOWN]
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_fields(owner: Object, known: frozenset[str], field: str) -> None:
    """Raise InputError if an object has an unknown or a duplicate key."""
    names = ", ".join(sorted(known))
    # An object with more keys than `known` has an unknown or a duplicate key. Do not list its keys.
    if len(owner) > len(known):
        raise InputError(f"{field} has {len(owner)} fields: only {names} are known")
    keys = list(owner.keys())
    for key in keys:
        if key not in known:
            raise InputError(f"{field} has the unknown field {show(key)}: known fields are {names}")
    if len(set(keys)) < len(keys):
        raise InputError(f"{field} contains a duplicate field (known fields: {names})")
