"""Open Inference Protocol V2 over REST: requests, responses and metadata.

With the binary tensor extension, values follow the JSON in the order of the tensors (protocol:
github.com/kserve/open-inference-protocol, and Triton's extension_binary_data.md).

A client sends the same few hundred bytes of JSON before each of its tensors. Parsing and
serializing them takes longer than all other work of the event loop for a small request, so a parsed
request is kept as a `Plan`, with the JSON of its responses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from simdjson import Array, Object

from inference.engine.interface import Answer, InputError, Served, TensorSpec
from inference.protocol.tensors import (
    LITTLE_ENDIAN,
    Blobs,
    as_object,
    check_fields,
    check_finite,
    check_inputs,
    check_shape,
    find,
    from_json,
    parse_object,
    show,
    to_bytes,
)

SERVER_NAME: Final = "gpu-platform-inference"
SERVER_VERSION: Final = "0.1.0"
EXTENSIONS: Final = ("binary_tensor_data",)

MAX_PLANS: Final = 256

MAX_PLAN_BYTES: Final = 2048
"""Maximum length of the JSON of a plan that is kept."""

DEFAULT_MAX_JSON: Final = 2 * 2**20

REQUEST_FIELDS: Final = frozenset({"id", "parameters", "inputs", "outputs", "model_name"})
"""KServe's client adds `model_name`, which must be that of the path."""
REQUEST_PARAMETERS: Final = frozenset({"timeout", "binary_data_output"})
TENSOR_FIELDS: Final = frozenset({"name", "shape", "datatype", "parameters", "data"})
TENSOR_PARAMETERS: Final = frozenset({"binary_data_size"})
OUTPUT_FIELDS: Final = frozenset({"name", "parameters"})
OUTPUT_PARAMETERS: Final = frozenset({"binary_data"})

BYTES_SIZE: Final = 64
"""Assumed size of a text in an output, before it is computed."""

MAX_HEADS: Final = 16
"""Maximum number of response heads kept per plan: outputs of texts have many lengths."""

Head = tuple[object, ...]
"""Everything that the JSON of a response depends on: shapes and sizes of its outputs."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client requests, as bytes after the JSON if `binary`."""

    spec: TensorSpec
    binary: bool = False


class InferRequest(NamedTuple):
    """A request that fits `Served.inputs`, and the outputs in the order of the response."""

    id: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[RequestedOutput, ...]
    timeout: float | None = None
    """Seconds; None if the body names no timeout."""
    plan: "Plan | None" = None
    """The parsed JSON, kept for later requests and their responses."""

    def needed(self, served: Served) -> frozenset[str] | None:
        """Return the names of the outputs; None for all, as in most requests."""
        if len(self.outputs) == len(served.outputs):
            return None
        return frozenset([output.spec.name for output in self.outputs])


@dataclass(frozen=True, slots=True)
class Plan:
    """A parsed request whose values all follow the JSON."""

    identity: str
    tensors: tuple[tuple[int, TensorSpec, tuple[int, ...], str], ...]
    """In the order of the values: size in bytes, input, shape, and the name of the field."""
    outputs: tuple[RequestedOutput, ...]
    timeout: float | None
    served: Served
    heads: dict[Head, bytes] = field(default_factory=dict, repr=False, compare=False)
    """JSON of responses whose values all follow it."""

    size: int = field(init=False)
    """Size of all values in bytes; -1 if they need more than a view of the body."""

    def __post_init__(self) -> None:
        plain = all(
            LITTLE_ENDIAN[spec.datatype].kind in "fiu"
            and size == math.prod(shape) * LITTLE_ENDIAN[spec.datatype].itemsize
            for size, spec, shape, _ in self.tensors
        )
        total = sum(size for size, *_ in self.tensors)
        object.__setattr__(self, "size", total if plain else -1)

    def request(self, body: bytes | bytearray, begin: int) -> InferRequest:
        """Return the request with the values from `begin`. Raise InputError as parsing would."""
        if len(body) - begin == self.size:
            inputs = self._numbers(body, begin)
        else:
            blobs = Blobs(memoryview(body)[begin:])
            inputs = {
                spec.name: blobs.take(size, spec, shape, name)
                for size, spec, shape, name in self.tensors
            }
            blobs.check_used()
        return InferRequest(self.identity, inputs, self.outputs, self.timeout, self)

    def keep_head(self, key: Head, head: bytes) -> None:
        """Keep the JSON of a response."""
        if len(self.heads) < MAX_HEADS:
            self.heads[key] = head

    def _numbers(self, body: bytes | bytearray, begin: int) -> dict[str, NDArray[Any]]:
        inputs = {}
        for size, spec, shape, name in self.tensors:
            values = np.ndarray(shape, LITTLE_ENDIAN[spec.datatype], body, begin)
            inputs[spec.name] = check_finite(values, spec, name)
            begin += size
        return inputs


def keep_plan(head: bytes, plan: Plan) -> None:
    """Keep a plan unless its JSON is too long. All are dropped at `MAX_PLANS`."""
    plans = plan.served.plans
    if len(head) <= MAX_PLAN_BYTES:
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plans[head] = plan


def read_request(
    body: bytes | bytearray,
    served: Served,
    header_length: str | None = None,
    max_json: int = DEFAULT_MAX_JSON,
) -> InferRequest:
    """Parse the body of POST …/infer.

    `header_length` is the value of Inference-Header-Content-Length, the length of the JSON.
    Raise InputError, also for more than `max_json` bytes of JSON.
    """
    blobs = None
    length = len(body) if header_length is None else _length(header_length, len(body))
    if length > max_json:
        # Parsing blocks the event loop: about 20 ms for each MiB in the worst case.
        raise InputError(
            f"the JSON has {length} bytes, more than {max_json}: send the values as binary tensors"
        )
    head = bytes(body[:length])
    if header_length is not None:
        plan: Plan | None = served.plans.get(head)
        if plan is not None:
            return plan.request(body, length)
        blobs = Blobs(memoryview(body)[length:])
    document = parse_object(head)
    check_fields(document, REQUEST_FIELDS, "the body")
    name = document.get("model_name", served.name)
    if name != served.name:
        raise InputError(f"model_name is {show(name)}: the path names {served.name!r}")
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise InputError(f"id is {show(identity)}: it must be a string")
    parameters = _parameters(document, "parameters", REQUEST_PARAMETERS)
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
        keep_plan(head, plan)
    return InferRequest(identity, inputs, outputs, timeout, plan)


def write_answer(request: InferRequest, answer: Answer) -> tuple[bytes, int | None]:
    """Return the body of the response, and the length of its JSON if binary values follow."""
    found = [(wanted, answer.outputs[wanted.spec.name]) for wanted in request.outputs]
    blobs = [to_bytes(values, wanted.spec) for wanted, values in found if wanted.binary]
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


def check_output_size(request: InferRequest, max_bytes: int, max_json: int) -> int:
    """Return the expected size of the response's values in bytes.

    A dynamic dimension is taken from the inputs: outputs have at most as many
    entries in a dimension. Raise InputError if the outputs are too large to be sent.
    """
    shapes = [array.shape for array in request.inputs.values()]
    total = json = 0
    for output in request.outputs:
        size = (
            BYTES_SIZE
            if output.spec.datatype == "BYTES"
            else (LITTLE_ENDIAN[output.spec.datatype].itemsize)
        )
        for axis, length in enumerate(output.spec.shape):
            size *= (
                length
                if length >= 0
                else max((shape[axis] for shape in shapes if axis < len(shape)), default=1)
            )
        total += size
        json += 0 if output.binary else size
    if total > max_bytes:
        raise InputError(
            f"the outputs would have {total} bytes, more than {max_bytes}: send fewer samples, or "
            "request fewer outputs"
        )
    if json > max_json:
        raise InputError(
            f"the outputs would have {json} bytes before they are written as JSON, more than "
            f"{max_json}: request them with binary_data, or send fewer samples"
        )
    return total


def server_metadata() -> dict[str, Any]:
    """Return the body of GET /v2."""
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(served: Served) -> dict[str, Any]:
    """Return the model's tensors, origin and metrics."""
    manifest = served.manifest
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": f"pytorch_{served.backend}",
        "inputs": [_metadata(spec) for spec in served.inputs],
        "outputs": [_metadata(spec) for spec in served.outputs],
        "parameters": {
            "sha256": manifest.weights.sha256,
            "run": manifest.run,
            "architecture": manifest.model,
            "backend": served.backend,
            "classes": list(manifest.classes),
            "metrics": manifest.metrics,
            "settings": manifest.settings,
        },
    }


def _metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _head(
    request: InferRequest,
    answer: Answer,
    found: Sequence[tuple[RequestedOutput, NDArray[Any]]],
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
            output["data"] = _data(values, wanted.spec.name)
        outputs.append(output)
    document: dict[str, Any] = {
        "model_name": answer.served.name,
        "model_version": answer.served.version,
    }
    if request.id:
        document["id"] = request.id
    document["outputs"] = outputs
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _data(values: NDArray[Any], name: str) -> Any:
    """Return the values as a flat list: the protocol allows nesting, but most servers send this.

    Raise InputError for values that JSON cannot express.
    """
    flat = values.ravel()
    if flat.dtype.kind == "f":
        if not np.isfinite(flat).all():
            raise InputError(
                f"output {name!r} has NaN or infinite values for this input, which JSON cannot "
                "express: request it with binary_data"
            )
        # orjson does not support half precision.
        return flat.astype(np.float32) if flat.dtype == np.float16 else flat
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
        spec, values = _tensor(as_object(entry, field), served, blobs, field)
        if spec.name in inputs:
            raise InputError(f"{field}.name repeats {spec.name!r}")
        inputs[spec.name] = values
    return inputs


def _tensor(
    tensor: Object, served: Served, blobs: Blobs | None, field: str
) -> tuple[TensorSpec, NDArray[Any]]:
    for key in ("name", "shape", "datatype"):
        if key not in tensor:
            raise InputError(f"{field}.{key} is missing")
    spec = find(tensor["name"], served.inputs, f"{field}.name")
    if (datatype := tensor["datatype"]) != spec.datatype:
        raise InputError(f"{field}.datatype is {show(datatype)}: it must be {spec.datatype!r}")
    parameters = _parameters(tensor, f"{field}.parameters", TENSOR_PARAMETERS)
    check_fields(tensor, TENSOR_FIELDS, field)
    shape = check_shape(tensor["shape"], spec, f"{field}.shape")
    size = parameters.get("binary_data_size") if parameters is not None else None
    if size is None:
        if "data" not in tensor:
            raise InputError(f"{field}.data is missing")
        return spec, from_json(tensor["data"], spec, shape, f"{field}.data")
    name = f"{field}.parameters.binary_data_size"
    if blobs is None:
        raise InputError(f"{name} needs the header Inference-Header-Content-Length")
    if "data" in tensor:
        raise InputError(f"{field} has both data and parameters.binary_data_size")
    return spec, blobs.take(size, spec, shape, name)


def _outputs(document: Object, served: Served, binary: bool) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs, or all if none is named."""
    listed = document.get("outputs")
    if listed is None or (isinstance(listed, Array) and not len(listed)):
        return tuple(RequestedOutput(spec, binary) for spec in served.outputs)
    if not isinstance(listed, Array):
        raise InputError("outputs must be a list")
    if len(listed) > len(served.outputs):
        raise InputError(f"outputs has {len(listed)} entries, but there are {len(served.outputs)}")
    wanted: dict[str, RequestedOutput] = {}
    for index, entry in enumerate(listed):
        field = f"outputs[{index}]"
        output = as_object(entry, field)
        spec = find(output.get("name"), served.outputs, f"{field}.name")
        if spec.name in wanted:
            raise InputError(f"{field}.name repeats {spec.name!r}")
        check_fields(output, OUTPUT_FIELDS, field)
        parameters = _parameters(output, f"{field}.parameters", OUTPUT_PARAMETERS)
        as_bytes = _flag(parameters, "binary_data", f"{field}.parameters", binary)
        wanted[spec.name] = RequestedOutput(spec, as_bytes)
    return tuple(wanted.values())


def _parameters(owner: Object, field: str, known: frozenset[str]) -> Object | None:
    if "parameters" not in owner:
        return None
    parameters = as_object(owner["parameters"], field)
    check_fields(parameters, known, field)
    return parameters


def _flag(parameters: Object | None, name: str, field: str, default: bool = False) -> bool:
    value = parameters.get(name) if parameters is not None else None
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{field}.{name} is {show(value)}: it must be true or false")
    return value


def _timeout(parameters: Object | None) -> float | None:
    """Return seconds; Triton's clients send microseconds, and 0 for no timeout."""
    value = parameters.get("timeout") if parameters is not None else None
    if value is None or value == 0:
        return None
    if type(value) is not int or not 0 < value < 2**53:
        raise InputError(f"parameters.timeout is {show(value)}: it must be in microseconds")
    return value / 1e6
