"""Requests and responses in the two formats that are compared: bytes and JSON."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tools.bench.inference.workloads import Array, Workload

Format = Literal["raw", "json"]
"""Format of a request and of its response: raw bytes or JSON."""
FORMATS: Final[tuple[Format, ...]] = ("raw", "json")

RAW: Final = {"Content-Type": "application/octet-stream"}
JSON: Final = {"Content-Type": "application/json"}
HEADER_LENGTH: Final = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Request:
    """Body and headers of a request."""

    body: bytes
    headers: dict[str, str]


Encode = Callable[[Workload, Array], Request]
Decode = Callable[[bytes, dict[str, str]], Array]


def raw(_: Workload, sample: Array) -> Request:
    """Return the bytes of the tensor."""
    return Request(sample.tobytes(), RAW)


def values(_: Workload, sample: Array) -> Request:
    """Return nested lists of numbers as JSON."""
    return Request(_dump({"values": sample.tolist()}), JSON)


def batch_of_values(_: Workload, sample: Array) -> Request:
    """Return a batch of one sample, because BentoML requires batches."""
    return Request(_dump({"values": [sample.tolist()]}), JSON)


def v2_json(workload: Workload, sample: Array) -> Request:
    """Return an Open Inference Protocol request with the numbers in a flat list."""
    tensor = _tensor(workload) | {"data": sample.ravel().tolist()}
    return Request(_dump({"inputs": [tensor], "outputs": [{"name": output_of(workload)}]}), JSON)


def v2_binary(workload: Workload, sample: Array) -> Request:
    """Return an Open Inference Protocol request that uses the binary tensor extension."""
    blob = sample.tobytes()
    tensor = _tensor(workload) | {"parameters": {"binary_data_size": len(blob)}}
    output = {"name": output_of(workload), "parameters": {"binary_data": True}}
    header = _dump({"inputs": [tensor], "outputs": [output]})
    return Request(header + blob, RAW | {HEADER_LENGTH: str(len(header))})


def v2_base64(_: Workload, sample: Array) -> Request:
    """Return an Open Inference Protocol request with MLServer's content type for bytes."""
    data = base64.b64encode(sample.tobytes()).decode()
    tensor = {
        "name": "inputs",
        "datatype": "BYTES",
        "shape": [1, 1],
        "data": [data],
        "parameters": {"content_type": "base64"},
    }
    return Request(_dump({"inputs": [tensor]}), JSON)


def from_raw(body: bytes, _: dict[str, str]) -> Array:
    """Parse the bytes of a tensor."""
    return np.frombuffer(body, "<f4")


def from_list(body: bytes, _: dict[str, str]) -> Array:
    """Parse a flat or nested list, or an object that contains the list under `values`."""
    document = json.loads(body)
    found = document["values"] if isinstance(document, dict) else document
    return np.asarray(found, np.float32).ravel()


def from_v2(body: bytes, headers: dict[str, str]) -> Array:
    """Parse the output in an Open Inference Protocol response: binary, base64 or JSON."""
    length = headers.get(HEADER_LENGTH.lower())
    if length is not None:
        return np.frombuffer(body[int(length) :], "<f4")
    (output,) = json.loads(body)["outputs"]
    if output["datatype"] == "BYTES":
        return np.frombuffer(base64.b64decode(output["data"][0]), "<f4")
    return np.asarray(output["data"], np.float32).ravel()


def output_of(workload: Workload) -> str:
    """Return the name of the output in responses of our server."""
    return "probabilities" if workload.is_network else "outputs"


def _tensor(workload: Workload) -> dict[str, Any]:
    name = "images" if len(workload.shape) == 3 else "inputs"
    return {"name": name, "datatype": "FP32", "shape": [1, *workload.shape]}


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
