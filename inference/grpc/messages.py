"""Between the messages of the protocol over gRPC and requests and answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.engine.datatypes import NUMPY
from inference.engine.interface import Answer, InputError, Served, TensorSpec
from inference.grpc import open_inference_pb2 as pb
from inference.protocol.blobs import from_blob, to_blob
from inference.protocol.metadata import platform
from inference.protocol.request import (
    InferRequest,
    Wanted,
    all_outputs,
    check_datatype,
    check_finite,
    check_inputs,
    check_shape,
    check_size,
    input_named,
    output_named,
)

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Field of InferTensorContents by type; FP16 has none, and comes raw."""


def read_request(message: pb.ModelInferRequest, served: Served) -> InferRequest:
    """Read ModelInfer's message. Raises InputError."""
    if len(message.inputs) != len(served.inputs):
        names = ", ".join(repr(spec.name) for spec in served.inputs)
        raise InputError(f"inputs has {len(message.inputs)} tensors, but the model takes {names}")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InputError(
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs"
        )
    inputs: dict[str, NDArray[Any]] = {}
    for index, tensor in enumerate(message.inputs):
        field = f"inputs[{index}]"
        spec = input_named(tensor.name, served, f"{field}.name")
        check_datatype(tensor.datatype, spec, f"{field}.datatype")
        shape = check_shape(tuple(tensor.shape), spec, f"{field}.shape")
        if spec.name in inputs:
            raise InputError(f"{field}.name is {spec.name!r} for the second time")
        if raw:
            if tensor.HasField("contents"):
                raise InputError(f"{field} has both contents and raw_input_contents")
            inputs[spec.name] = from_blob(raw[index], spec, shape, f"raw_input_contents[{index}]")
        else:
            inputs[spec.name] = _contents(tensor, spec, shape, field)
    check_inputs(inputs, served)
    return InferRequest(message.id, inputs, _outputs(message, served), _timeout(message))


def write_answer(request: InferRequest, answer: Answer) -> pb.ModelInferResponse:
    """The answer, with raw values as Triton gives them."""
    response = pb.ModelInferResponse(
        model_name=answer.served.name, model_version=answer.served.version, id=request.id
    )
    for wanted in request.outputs:
        spec, values = wanted.spec, answer.outputs[wanted.spec.name]
        response.outputs.add(name=spec.name, datatype=spec.datatype, shape=values.shape)
        response.raw_output_contents.append(to_blob(values, spec))
    return response


def metadata(served: Served) -> pb.ModelMetadataResponse:
    """The model's tensors."""
    response = pb.ModelMetadataResponse(
        name=served.name, versions=[served.version], platform=platform(served)
    )
    for specs, tensors in ((served.inputs, response.inputs), (served.outputs, response.outputs)):
        for spec in specs:
            tensors.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
    return response


def _contents(
    tensor: pb.ModelInferRequest.InferInputTensor,
    spec: TensorSpec,
    shape: tuple[int, ...],
    field: str,
) -> NDArray[Any]:
    name = CONTENTS.get(spec.datatype)
    if name is None:
        raise InputError(f"{field}.contents has no field for {spec.datatype}: send it raw")
    given = getattr(tensor.contents, name)
    for other in tensor.contents.DESCRIPTOR.fields_by_name:
        if other != name and getattr(tensor.contents, other):
            raise InputError(f"{field}.contents has {other}: {spec.datatype} is in {name}")
    check_size(len(given), shape, f"{field}.contents.{name}")
    if spec.datatype == "BYTES":
        strings = np.empty(len(given), np.object_)
        strings[:] = list(given)
        return strings.reshape(shape)
    wide = np.array(given)
    values = wide.astype(NUMPY[spec.datatype])
    if values.dtype.kind in "iu" and not (values == wide).all():
        raise InputError(f"{field}.contents.{name} has a number that does not fit {spec.datatype}")
    return check_finite(values, spec, f"{field}.contents.{name}").reshape(shape)


def _outputs(message: pb.ModelInferRequest, served: Served) -> tuple[Wanted, ...]:
    if not message.outputs:
        return all_outputs(served, binary=True)
    wanted: dict[str, Wanted] = {}
    for index, output in enumerate(message.outputs):
        field = f"outputs[{index}].name"
        spec = output_named(output.name, served, field)
        if spec.name in wanted:
            raise InputError(f"{field} is {spec.name!r} for the second time")
        wanted[spec.name] = Wanted(spec, binary=True)
    return tuple(wanted.values())


def _timeout(message: pb.ModelInferRequest) -> float | None:
    """Microseconds, as Triton's clients send them; 0 is none."""
    if "timeout" not in message.parameters:
        return None
    value = message.parameters["timeout"].int64_param
    if value < 0:
        raise InputError(f"parameters.timeout is {value}: it must be microseconds")
    return value / 1e6 or None
