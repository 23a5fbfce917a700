"""POST /predict: one sample or several, without any protocol around them."""

from typing import Any

import orjson
from simdjson import Array, Object

from inference.engine.interface import Answer, InputError, Served, TensorSpec
from inference.protocol.numbers import array_of, nested_shape, parse
from inference.protocol.request import InferRequest, all_outputs, check_inputs
from inference.protocol.v2_json import json_values


def read_json(body: bytes, served: Served) -> InferRequest:
    """{"inputs": …}, or what stands there alone: a sample or a list of samples, nested.

    A model of several inputs takes an object of them by name. Raises InputError.
    """
    document: Any = parse(body)
    if isinstance(document, Object):
        if "inputs" not in document:
            raise InputError('inputs is missing: write {"inputs": [numbers, nested as the model]}')
        document = document["inputs"]
    if isinstance(document, Object):
        given = {spec.name: document.get(spec.name) for spec in served.inputs}
        unknown = [name for name in document if name not in given]
        if unknown:
            raise InputError(f"inputs.{unknown[0][:80]} is not an input of this model")
    elif len(served.inputs) == 1:
        given = {served.inputs[0].name: document}
    else:
        names = ", ".join(spec.name for spec in served.inputs)
        raise InputError(f"inputs must be an object, with {names}")
    arrays = {}
    for spec in served.inputs:
        data = given[spec.name]
        if not isinstance(data, Array):
            raise InputError(f"inputs must have a nested list of numbers for {spec.name!r}")
        found = nested_shape(data)
        shape = _batch_shape(found, spec)
        arrays[spec.name] = array_of(data, spec, found, "inputs").reshape(shape)
    check_inputs(arrays, served)
    return InferRequest("", arrays, all_outputs(served, binary=False))


def write_answer(answer: Answer) -> bytes:
    """An object for each sample, with the outputs by name."""
    outputs = {name: json_values(values) for name, values in answer.outputs.items()}
    samples = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
    document: dict[str, Any] = {
        "model_name": answer.served.name,
        "model_version": answer.served.version,
        "predictions": samples,
    }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _batch_shape(found: tuple[int, ...], spec: TensorSpec) -> tuple[int, ...]:
    """The shape in which the data are nested, with a batch of one where that was left out."""
    for shape in (found, (1, *found)):
        if len(shape) == len(spec.shape) and all(
            size > 0 and wanted in (-1, size)
            for size, wanted in zip(shape, spec.shape, strict=True)
        ):
            return shape
    one = [("any" if size == -1 else size) for size in spec.shape[1:]]
    raise InputError(
        f"inputs is nested as {list(found)}: it must be as one sample, {one}, or a list of those"
    )
