"""A request for inference, whatever it came by: checked names, types and shapes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from simdjson import Array, Object

from inference.engine.interface import InputError, Served, TensorSpec

if TYPE_CHECKING:
    from inference.protocol.plans import Plan


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that the client asks for, and whether as bytes behind the JSON."""

    spec: TensorSpec
    binary: bool = False


class InferRequest(NamedTuple):
    """A request that fits `Served.inputs`, and the outputs in the order of the answer."""

    id: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[Wanted, ...]
    timeout: float | None = None
    """Seconds, where the request itself names them."""
    plan: "Plan | None" = None
    """What was understood of its JSON before, and how its answers begin."""


def input_named(name: object, served: Served, field: str) -> TensorSpec:
    """What is known of the input with this name. Raises InputError."""
    for spec in served.inputs:
        if spec.name == name:
            return spec
    raise InputError(f"{field} is {show(name)}: it must be {_one_of(served.inputs)}")


def output_named(name: object, served: Served, field: str) -> TensorSpec:
    """What is known of the output with this name. Raises InputError."""
    for spec in served.outputs:
        if spec.name == name:
            return spec
    names = ", ".join(spec.name for spec in served.outputs)
    raise InputError(f"{field} is {show(name)}: there are {names}")


def check_datatype(datatype: object, spec: TensorSpec, field: str) -> None:
    """Raises InputError unless it is that of the input."""
    if datatype != spec.datatype:
        raise InputError(f"{field} is {show(datatype)}: it must be {spec.datatype!r}")


def check_shape(shape: object, spec: TensorSpec, field: str) -> tuple[int, ...]:
    """A shape that the input may have, with at least one sample. Raises InputError."""
    sizes = shape.as_list() if isinstance(shape, Array) and len(shape) <= 16 else shape
    if isinstance(sizes, Sequence) and len(sizes) == len(spec.shape):
        for size, wanted in zip(sizes, spec.shape, strict=True):
            if type(size) is not int or size < 1 or wanted not in (-1, size):
                break
        else:
            return tuple(sizes)
    wanted_shape = ", ".join(["N", *("any" if n == -1 else str(n) for n in spec.shape[1:])])
    raise InputError(f"{field} is {show(shape)}: it must be [{wanted_shape}] with N of at least 1")


def check_size(found: int, shape: tuple[int, ...], field: str) -> None:
    """Raises InputError unless so many values fill the shape."""
    needed = math.prod(shape)
    if found != needed:
        raise InputError(
            f"{field} has {found} values, but its shape is {list(shape)}, which needs {needed}"
        )


def check_finite(values: NDArray[Any], spec: TensorSpec, field: str) -> NDArray[Any]:
    """The same values. Raises InputError when one is infinite or not a number."""
    # Looked for among the bytes of the truth values: for a small tensor, half the time of `all`.
    if values.dtype.kind == "f" and b"\0" in np.isfinite(values).tobytes():
        raise InputError(f"{field} has a number that is too large for {spec.datatype}, or none")
    return values


def check_inputs(inputs: Mapping[str, NDArray[Any]], served: Served) -> None:
    """Raises InputError unless every input is there, all with the same number of samples."""
    missing = [spec.name for spec in served.inputs if spec.name not in inputs]
    if missing:
        raise InputError(f"inputs lacks {missing[0]!r}: there must be {_one_of(served.inputs)}")
    if len(inputs) > 1:
        samples = {name: len(values) for name, values in inputs.items()}
        if len(set(samples.values())) > 1:
            raise InputError(f"inputs have different numbers of samples: {samples}")


def all_outputs(served: Served, binary: bool) -> tuple[Wanted, ...]:
    """Those of a request that names none."""
    return tuple(Wanted(spec, binary) for spec in served.outputs)


def show(value: object) -> str:
    """A value as the client may recognise it, cut short."""
    if isinstance(value, Object | Array):
        count = len(value)
        value = f"<{count} entries>" if count > 40 else _native(value)
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _native(value: Object | Array) -> object:
    return value.as_list() if isinstance(value, Array) else value.as_dict()


def _one_of(specs: Iterable[TensorSpec]) -> str:
    return " or ".join(repr(spec.name) for spec in specs)
