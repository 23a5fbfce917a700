"""Open Inference Protocol V2 over REST: requests, responses and metadata.

With the binary tensor extension, values follow the JSON in the order of the tensors. The protocol
is specified in github.com/kserve/open-inference-protocol, and the extension in Triton's
extension_binary_data.md.

A client usually sends the same few hundred bytes of JSON before the binary values of each request.
For a small request, parsing and serializing this JSON takes longer than everything else in the
event loop. Parsed JSON is therefore cached as a `Plan`, together with the JSON of its responses.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, cast

import numpy as np
import orjson
from numpy.typing import NDArray
from simdjson import Array, Object

from inference.engine.interface import NUMPY, Answer, InputError, Served, Tensors, TensorSpec
from inference.protocol.tensors import (
    BinaryTensor,
    as_object,
    check_fields,
    check_shape,
    find_spec,
    from_json,
    parse_object,
    read_binary,
    show,
    to_binary,
)

SERVER_NAME: Final = "gpu-platform-inference"
SERVER_VERSION: Final = "0.1.0"

MAX_PLANS: Final = 256
"""Number of cached plans beyond which the cache is cleared."""

MAX_PLAN_BYTES: Final = 2048
"""Maximum length (bytes) of the JSON of a cached plan."""

DEFAULT_MAX_JSON: Final = 2 * 2**20

MAX_STRINGS: Final = 2**18
"""Maximum number of strings in the inputs of a request. Reading them and copying them to a worker
blocks the event loop for about 1 µs per string."""

REQUEST_FIELDS: Final = frozenset({"id", "parameters", "inputs", "outputs", "model_name"})
"""Fields of a request. KServe's client adds `model_name`, which must match the path."""
REQUEST_PARAMETERS: Final = frozenset({"timeout", "binary_data_output"})
TENSOR_FIELDS: Final = frozenset({"name", "shape", "datatype", "parameters", "data"})
INPUT_REQUIRED: Final = ("name", "shape", "datatype")
TENSOR_PARAMETERS: Final = frozenset({"binary_data_size"})
OUTPUT_FIELDS: Final = frozenset({"name", "parameters"})
OUTPUT_PARAMETERS: Final = frozenset({"binary_data"})

BYTES_SIZE: Final = 64
"""Assumed size (bytes) of each string in an output, used until the output is computed."""

LENGTH_SIZE: Final = 4
"""Size (bytes) of the length prefix of each string in binary form."""

MAX_HEADS: Final = 16
"""Maximum number of response JSON documents to cache per plan. String outputs need a document for
each size."""


class RequestedOutput(NamedTuple):
    """An output that the client requests. If `binary`, its values follow the JSON as bytes."""

    spec: TensorSpec
    binary: bool = False


@dataclass(slots=True, eq=False)
class Plan:
    """The parsed JSON of a request."""

    id: str
    timeout: float | None
    """Timeout (s); None if the JSON sets none."""
    outputs: tuple[RequestedOutput, ...]
    """Outputs in the order of the response."""
    served: Served
    tensors: tuple[BinaryTensor, ...] = ()
    """Inputs whose values follow the JSON, in the order of these values."""
    output_sizes: tuple[int, int] = (0, 0)
    """Expected size (bytes) of all values in the response, and of the values in its JSON."""
    needed: frozenset[str] | None = None
    """Names of the outputs; None for all, as in most requests."""
    is_variable: bool = False
    """True if strings or dynamic dimensions may cause sizes other than the expected ones."""
    heads: dict[tuple[object, ...], bytes] = field(default_factory=dict, repr=False)
    """Cached JSON of responses in which all values are binary, by the shapes and sizes of these
    values."""


class InferRequest(NamedTuple):
    """A parsed request, whose inputs match `Served.inputs`."""

    plan: Plan
    inputs: Tensors


def read_request(
    body: bytes | bytearray,
    served: Served,
    header_length: str | None = None,
    max_json: int = DEFAULT_MAX_JSON,
    max_samples: int = sys.maxsize,
) -> InferRequest:
    """Parse the body of POST …/infer.

    `header_length` is the value of Inference-Header-Content-Length, the length of the JSON. Raise
    InputError if the request is invalid, if its JSON has more than `max_json` bytes, or if it has
    more than `max_samples` samples.
    """
    length = len(body) if header_length is None else _length(header_length, len(body))
    if length > max_json:
        # Parsing blocks the event loop: for each MiB, about 10 ms for numbers, and 100 ms for short
        # strings.
        raise InputError(
            f"the JSON has {length} bytes, more than {max_json}: send the values as binary tensors"
        )
    head = bytes(body[:length])
    plan: Plan | None = None if header_length is None else served.plans.get(head)
    if plan is not None:
        return InferRequest(plan, read_binary(plan.tensors, body, length))
    document = parse_object(head)
    check_fields(document, REQUEST_FIELDS, "the body")
    name = document.get("model_name", served.name)
    if name != served.name:
        raise InputError(f"model_name is {show(name)}: the path names {served.name!r}")
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise InputError(f"id is {show(identity)}: it must be a string")
    parameters = _parameters(document, "parameters", REQUEST_PARAMETERS)
    inputs, tensors = _inputs(document, served, header_length is not None, max_samples)
    if header_length is not None:
        inputs |= read_binary(tensors, body, length)
    samples = {name: len(values) for name, values in inputs.items()}
    if len(samples) > 1 and len(set(samples.values())) > 1:
        raise InputError(f"inputs have different numbers of samples: {samples}")
    outputs = _outputs(document, served, _flag(parameters, "binary_data_output", "parameters"))
    shapes = [array.shape for array in inputs.values()]
    sizes = _output_sizes(outputs, shapes)
    variable = any(spec.datatype == "BYTES" or -1 in spec.shape[1:] for spec, _ in outputs)
    names = frozenset(spec.name for spec, _ in outputs)
    needed = names if len(names) < len(served.outputs) else None
    seconds = _timeout(parameters)
    plan = Plan(identity, seconds, outputs, served, tuple(tensors), sizes, needed, variable)
    if len(tensors) == len(inputs) and len(head) <= MAX_PLAN_BYTES:
        if len(served.plans) >= MAX_PLANS:
            served.plans.clear()
        served.plans[head] = plan
    return InferRequest(plan, inputs)


def write_answer(request: InferRequest, answer: Answer) -> tuple[bytes, Sequence[memoryview]]:
    """Return the JSON of the response, and the binary values that follow it."""
    plan = request.plan
    found = [(wanted, answer.outputs[wanted.spec.name]) for wanted in plan.outputs]
    blobs = [to_binary(values, wanted.spec) for wanted, values in found if wanted.binary]
    cached = plan.heads if len(blobs) == len(found) and plan.served is answer.served else {}
    key = (*[values.shape for _, values in found], *[blob.nbytes for blob in blobs])
    head = cached.get(key)
    if head is None:
        head = _head(plan, answer, found, iter(blobs))
        if len(cached) < MAX_HEADS:
            cached[key] = head
    return head, blobs


def check_output_size(
    request: InferRequest, max_bytes: int, max_json: int, answer: Answer | None = None
) -> int:
    """Return the size of the response's values in bytes.

    If `answer` is None, this is the expected size, otherwise the actual size. Raise InputError if
    the outputs are too large to be sent.
    """
    total, json = request.plan.output_sizes
    if answer is not None and request.plan.is_variable:
        total = json = 0
        for spec, binary in request.plan.outputs:
            values = answer.outputs[spec.name]
            size = values.nbytes
            if spec.datatype == "BYTES":
                size = values.size * LENGTH_SIZE + sum(map(len, values.ravel().tolist()))
            total += size
            json += 0 if binary else size
    if total > max_bytes:
        raise InputError(
            f"the outputs would have {total} bytes, more than {max_bytes}: send fewer samples, or "
            "request fewer outputs"
        )
    if json > max_json:
        raise InputError(
            f"the outputs contain {json} bytes of values to encode as JSON, more than "
            f"{max_json}: request them with binary_data, or send fewer samples"
        )
    return total


def model_metadata(served: Served) -> dict[str, Any]:
    """Return the model's tensors, origin and metrics."""
    manifest = served.manifest
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": f"pytorch_{served.backend}",
        "inputs": [asdict(spec) for spec in served.inputs],
        "outputs": [asdict(spec) for spec in served.outputs],
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


def _head(
    plan: Plan,
    answer: Answer,
    found: Sequence[tuple[RequestedOutput, NDArray[Any]]],
    blobs: Iterator[memoryview],
) -> bytes:
    outputs = []
    for wanted, values in found:
        output: dict[str, Any] = {
            "name": wanted.spec.name,
            "datatype": wanted.spec.datatype,
            "shape": values.shape,
        }
        if wanted.binary:
            output["parameters"] = {"binary_data_size": next(blobs).nbytes}
        else:
            output["data"] = _data(values, wanted.spec.name)
        outputs.append(output)
    document: dict[str, Any] = {
        "model_name": answer.served.name,
        "model_version": answer.served.version,
    }
    if plan.id:
        document["id"] = plan.id
    document["outputs"] = outputs
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _data(values: NDArray[Any], name: str) -> Any:
    """Return the values as a flat list.

    The protocol also allows nested lists, but most servers send flat ones. Raise InputError for
    values that JSON cannot express.
    """
    flat = values.ravel()
    problem = ""
    if flat.dtype.hasobject:
        try:
            return [value.decode() for value in flat]
        except UnicodeDecodeError:
            problem = "strings that are not UTF-8"
    elif flat.dtype.kind == "f" and not np.isfinite(flat).all():
        problem = "NaN or infinite values"
    if problem:
        raise InputError(
            f"output {name!r} has {problem}, which JSON cannot express: request this output "
            "with binary_data"
        )
    # orjson does not support half precision.
    return flat.astype(np.float32) if flat.dtype == np.float16 else flat


def _length(text: str, body_length: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) > body_length:
        raise InputError(
            f"Inference-Header-Content-Length is {show(text)}: it must be the length of the JSON, "
            f"at most the length of the body ({body_length})"
        )
    return int(text)


def _inputs(
    document: Object, served: Served, allow_binary: bool, max_samples: int
) -> tuple[dict[str, NDArray[Any]], list[BinaryTensor]]:
    """Return the inputs with values in the JSON, and those whose values follow the JSON."""
    tensors = document.get("inputs")
    count = len(served.inputs)
    if not isinstance(tensors, Array) or len(tensors) != count:
        names = ", ".join(repr(spec.name) for spec in served.inputs)
        wanted = "one tensor, named" if count == 1 else f"{count} tensors:"
        raise InputError(f"inputs must be a list of {wanted} {names}")
    inputs: dict[str, NDArray[Any]] = {}
    binary: list[BinaryTensor] = []
    strings = 0
    for path, tensor, spec in _entries(tensors, served.inputs, "inputs", INPUT_REQUIRED):
        if (datatype := tensor["datatype"]) != spec.datatype:
            raise InputError(f"{path}.datatype is {show(datatype)}: it must be {spec.datatype!r}")
        check_fields(tensor, TENSOR_FIELDS, path)
        shape = check_shape(tensor["shape"], spec, f"{path}.shape")
        if shape[0] > max_samples:
            # Check this first, because reading millions of strings would block the event loop.
            raise InputError(
                f"{path}.shape has {shape[0]} samples: send at most {max_samples} at once"
            )
        strings += math.prod(shape) if spec.datatype == "BYTES" else 0
        if strings > MAX_STRINGS:
            raise InputError(f"the inputs have {strings} strings: send at most {MAX_STRINGS}")
        parameters = _parameters(tensor, f"{path}.parameters", TENSOR_PARAMETERS)
        size = parameters.get("binary_data_size")
        if size is None:
            if "data" not in tensor:
                raise InputError(f"{path}.data is missing")
            inputs[spec.name] = from_json(tensor["data"], spec, shape, f"{path}.data")
            continue
        name = f"{path}.parameters.binary_data_size"
        if not allow_binary:
            raise InputError(f"{name} needs the Inference-Header-Content-Length header")
        if "data" in tensor:
            raise InputError(f"{path} has both data and parameters.binary_data_size")
        binary.append((size, spec, shape, name))
    return inputs, binary


def _entries(
    listed: Array, specs: tuple[TensorSpec, ...], owner: str, required: Sequence[str] = ()
) -> Iterator[tuple[str, Object, TensorSpec]]:
    """Yield the path, the content and the specification of each tensor in a list.

    Raise InputError if one is repeated or unknown, or lacks a required field.
    """
    seen = set()
    for index, entry in enumerate(listed):
        field = f"{owner}[{index}]"
        tensor = as_object(entry, field)
        for key in required:
            if key not in tensor:
                raise InputError(f"{field}.{key} is missing")
        spec = find_spec(tensor.get("name"), specs, f"{field}.name")
        if spec.name in seen:
            raise InputError(f"{field}.name repeats {spec.name!r}")
        seen.add(spec.name)
        yield field, tensor, spec


def _outputs(document: Object, served: Served, binary: bool) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs, or all outputs if the request names none."""
    listed = document.get("outputs")
    if listed is None or (isinstance(listed, Array) and not len(listed)):
        return tuple(RequestedOutput(spec, binary) for spec in served.outputs)
    if not isinstance(listed, Array):
        raise InputError("outputs must be a list")
    if len(listed) > len(served.outputs):
        raise InputError(
            f"outputs has {len(listed)} entries, but the model has only {len(served.outputs)}"
        )
    wanted = []
    for path, output, spec in _entries(listed, served.outputs, "outputs"):
        check_fields(output, OUTPUT_FIELDS, path)
        parameters = _parameters(output, f"{path}.parameters", OUTPUT_PARAMETERS)
        as_bytes = _flag(parameters, "binary_data", f"{path}.parameters", binary)
        wanted.append(RequestedOutput(spec, as_bytes))
    return tuple(wanted)


def _parameters(owner: Object, field: str, known: frozenset[str]) -> Mapping[str, Any]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    check_fields(as_object(parameters, field), known, field)
    return cast(Mapping[str, Any], parameters)


def _flag(parameters: Mapping[str, Any], name: str, field: str, default: bool = False) -> bool:
    value = parameters.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{field}.{name} is {show(value)}: it must be true or false")
    return value


def _output_sizes(
    outputs: Sequence[RequestedOutput], inputs: Sequence[tuple[int, ...]]
) -> tuple[int, int]:
    """Return `Plan.output_sizes` for inputs of these shapes.

    A dynamic dimension of an output is assumed to be as large as the same dimension of the inputs.
    """
    total = json = 0
    for spec, binary in outputs:
        size = BYTES_SIZE if spec.datatype == "BYTES" else NUMPY[spec.datatype].itemsize
        for axis, length in enumerate(spec.shape):
            if length == -1:
                length = max((shape[axis] for shape in inputs if axis < len(shape)), default=1)
            size *= length
        total += size
        json += 0 if binary else size
    return total, json


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return the timeout in seconds. Triton's clients send microseconds, and 0 for no timeout."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**53:
        raise InputError(
            f"parameters.timeout is {show(value)}: it must be a non-negative integer (microseconds)"
        )
    return value / 1e6 or None
