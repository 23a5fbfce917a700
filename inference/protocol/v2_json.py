"""Open Inference Protocol V2 over REST: the body of …/infer and its answer.

With the binary tensor extension, values lie behind the JSON, in the order of the tensors
(protocol: github.com/kserve/open-inference-protocol, and Triton's extension_binary_data.md).
"""

from collections.abc import Sequence
from typing import Any

import orjson
from numpy.typing import NDArray
from simdjson import Array, Object

from inference.engine.interface import Answer, InputError, Served, TensorSpec
from inference.protocol.blobs import Blobs, to_blob
from inference.protocol.numbers import array_of, object_of, parse_object
from inference.protocol.plans import Plan, Plans
from inference.protocol.request import (
    InferRequest,
    Wanted,
    all_outputs,
    check_datatype,
    check_inputs,
    check_shape,
    input_named,
    output_named,
    show,
)

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
_PLANS = Plans()


def read_request(body: bytes, served: Served, header_length: str | None = None) -> InferRequest:
    """Read the body of POST …/infer.

    `header_length` is the value of Inference-Header-Content-Length, bytes of JSON in front.
    Raises InputError.
    """
    blobs = None
    head = body
    if header_length is not None:
        length = _length(header_length, len(body))
        head = body[:length]
        known = _PLANS.get(head, served)
        if known is not None:
            return known.request(body, length)
        blobs = Blobs(memoryview(body)[length:])
    document = parse_object(head)
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise InputError(f"id is {show(identity)}: it must be a string")
    parameters = _parameters(document, "parameters")
    inputs = _inputs(document, served, blobs)
    if blobs is not None:
        blobs.check_used()
    check_inputs(inputs, served)
    binary = _flag(parameters, "binary_data_output", "parameters")
    outputs = _outputs(document, served, binary)
    timeout = _timeout(parameters)
    plan = None
    if blobs is not None and len(blobs.tensors) == len(inputs):
        plan = Plan(identity, tuple(blobs.tensors), outputs, timeout, served)
        _PLANS.keep(head, plan)
    return InferRequest(identity, inputs, outputs, timeout, plan)


def write_answer(request: InferRequest, answer: Answer) -> tuple[bytes, int | None]:
    """The body of the answer, and the length of its JSON where binary values follow."""
    found = [(wanted, answer.outputs[wanted.spec.name]) for wanted in request.outputs]
    blobs = [to_blob(values, wanted.spec) for wanted, values in found if wanted.binary]
    if not blobs:
        return _head(request, answer, found, blobs), None
    plan = request.plan
    if plan is None or plan.served is not answer.served or len(blobs) < len(found):
        head = _head(request, answer, found, blobs)
    else:
        key = (*[values.shape for _, values in found], *map(len, blobs))
        known = plan.heads.get(key)
        if known is None:
            known = _head(request, answer, found, blobs)
            plan.keep_head(key, known)
        head = known
    return b"".join((head, *blobs)), len(head)


def _head(
    request: InferRequest,
    answer: Answer,
    found: Sequence[tuple[Wanted, NDArray[Any]]],
    blobs: Sequence[bytes],
) -> bytes:
    outputs = []
    sizes = map(len, blobs)
    for wanted, values in found:
        output: dict[str, Any] = {
            "name": wanted.spec.name,
            "datatype": wanted.spec.datatype,
            "shape": values.shape,
        }
        if wanted.binary:
            output["parameters"] = {"binary_data_size": next(sizes)}
        else:
            output["data"] = _data(values)
        outputs.append(output)
    document: dict[str, Any] = {
        "model_name": answer.served.name,
        "model_version": answer.served.version,
    }
    if request.id:
        document["id"] = request.id
    document["outputs"] = outputs
    return orjson.dumps(document, option=_NUMPY)


def _data(values: NDArray[Any]) -> Any:
    """Return the values as a flat list: the protocol takes both, and most servers send this."""
    flat = values.ravel()
    return [value.decode("utf-8", "replace") for value in flat] if flat.dtype.hasobject else flat


def _length(text: str, body: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) > body:
        raise InputError(
            f"Inference-Header-Content-Length is {show(text)}: it must be the length of the JSON, "
            f"at most that of the body, {body}"
        )
    return int(text)


def _inputs(document: Object, served: Served, blobs: Blobs | None) -> dict[str, NDArray[Any]]:
    tensors = document.get("inputs")
    count = len(served.inputs)
    if not isinstance(tensors, Array) or len(tensors) != count:
        names = ", ".join(repr(spec.name) for spec in served.inputs)
        if count == 1:
            raise InputError(f"inputs must be a list of one tensor, named {names}")
        raise InputError(f"inputs must be a list of {count} tensors: {names}")
    inputs: dict[str, NDArray[Any]] = {}
    for index, entry in enumerate(tensors):
        field = f"inputs[{index}]"
        tensor = object_of(entry, field)
        spec, values = _tensor(tensor, served, blobs, field)
        if spec.name in inputs:
            raise InputError(f"{field}.name is {spec.name!r} for the second time")
        inputs[spec.name] = values
    return inputs


def _tensor(
    tensor: Object, served: Served, blobs: Blobs | None, field: str
) -> tuple[TensorSpec, NDArray[Any]]:
    for key in ("name", "shape", "datatype"):
        if key not in tensor:
            raise InputError(f"{field}.{key} is missing")
    spec = input_named(tensor["name"], served, f"{field}.name")
    check_datatype(tensor["datatype"], spec, f"{field}.datatype")
    parameters = _parameters(tensor, f"{field}.parameters")
    shape = check_shape(tensor["shape"], spec, f"{field}.shape")
    size = parameters.get("binary_data_size") if parameters is not None else None
    if size is None:
        if "data" not in tensor:
            raise InputError(f"{field}.data is missing")
        return spec, array_of(tensor["data"], spec, shape, f"{field}.data")
    name = f"{field}.parameters.binary_data_size"
    if blobs is None:
        raise InputError(f"{name} needs the header Inference-Header-Content-Length")
    if "data" in tensor:
        raise InputError(f"{field} has both data and parameters.binary_data_size")
    return spec, blobs.take(size, spec, shape, name)


def _outputs(document: Object, served: Served, binary: bool) -> tuple[Wanted, ...]:
    """The wanted outputs; all of them when none is named."""
    listed = document.get("outputs")
    if listed is None or (isinstance(listed, Array) and not len(listed)):
        return all_outputs(served, binary)
    if not isinstance(listed, Array):
        raise InputError("outputs must be a list")
    if len(listed) > len(served.outputs):
        raise InputError(f"outputs has {len(listed)} entries, but there are {len(served.outputs)}")
    wanted: dict[str, Wanted] = {}
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        output = object_of(entry, field)
        spec = output_named(output.get("name"), served, f"{field}.name")
        if spec.name in wanted:
            raise InputError(f"{field}.name is {spec.name!r} for the second time")
        parameters = _parameters(output, f"{field}.parameters")
        if parameters is not None and parameters.get("classification") is not None:
            raise InputError(f"{field}.parameters.classification is not offered: ask for 'label'")
        own = _flag(parameters, "binary_data", f"{field}.parameters", binary)
        wanted[spec.name] = Wanted(spec, own)
    return tuple(wanted.values())


def _parameters(owner: Object, field: str) -> Object | None:
    if "parameters" not in owner:
        return None
    return object_of(owner["parameters"], field)


def _flag(parameters: Object | None, name: str, field: str, default: bool = False) -> bool:
    value = parameters.get(name) if parameters is not None else None
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{field}.{name} is {show(value)}: it must be true or false")
    return value


def _timeout(parameters: Object | None) -> float | None:
    """Microseconds, as Triton's clients send them; 0 is none."""
    value = parameters.get("timeout") if parameters is not None else None
    if value is None or value == 0:
        return None
    if type(value) is not int or not 0 < value < 2**53:
        raise InputError(f"parameters.timeout is {show(value)}: it must be microseconds")
    return value / 1e6
