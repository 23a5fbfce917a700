"""Open Inference Protocol V2 in JSON: what a request must look like, and what is answered.

Knows shapes and names, but neither HTTP nor PyTorch.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from training.manifest import Manifest

INPUT: Final = "images"
OUTPUTS: Final = {"probabilities": "FP32", "class": "INT64", "label": "BYTES"}


class BadRequestError(Exception):
    """The request cannot be answered as it is; the message names the field."""


@dataclass(frozen=True)
class InferRequest:
    """A valid request: images N x input shape, and the names of the wanted outputs in order."""

    id: str | None
    images: NDArray[np.float32]
    outputs: tuple[str, ...]


def read_request(body: bytes, manifest: Manifest) -> InferRequest:
    """Read the body of POST …/infer. Raises BadRequestError."""
    document = _object(_parse(body), "the body")
    identity = document.get("id")
    if identity is not None and not isinstance(identity, str):
        raise BadRequestError(f"id is {_show(identity)}: it must be a string")
    if "parameters" in document:
        _object(document["parameters"], "parameters")
    return InferRequest(identity, _images(document, manifest), _outputs(document))


def answer(
    request: InferRequest, name: str, manifest: Manifest, probabilities: NDArray[np.float32]
) -> dict[str, Any]:
    """The answer to a request whose images gave these probabilities, N x classes."""
    best = probabilities.argmax(1)
    values = {
        "probabilities": (list(probabilities.shape), probabilities.ravel().tolist()),
        "class": ([len(best)], best.tolist()),
        "label": ([len(best)], [manifest.classes[index] for index in best]),
    }
    outputs = [
        {"name": wanted, "datatype": OUTPUTS[wanted], "shape": values[wanted][0]}
        | {"data": values[wanted][1]}
        for wanted in request.outputs
    ]
    named = {"id": request.id} if request.id is not None else {}
    return {"model_name": name, "model_version": manifest.version, **named, "outputs": outputs}


def metadata(name: str, manifest: Manifest) -> dict[str, Any]:
    """What a client can know about the model: its tensors, where it comes from, how good it is."""
    classes = len(manifest.classes)
    shapes = {"probabilities": [-1, classes], "class": [-1], "label": [-1]}
    return {
        "name": name,
        "versions": [manifest.version],
        "platform": "pytorch_safetensors",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *manifest.input_shape]}],
        "outputs": [
            {"name": output, "datatype": datatype, "shape": shapes[output]}
            for output, datatype in OUTPUTS.items()
        ],
        "parameters": {
            "sha256": manifest.weights.sha256,
            "run": manifest.run,
            "architecture": manifest.model,
            "classes": list(manifest.classes),
            "metrics": manifest.metrics,
            "settings": manifest.settings,
        },
    }


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise BadRequestError(f"{name} is no JSON: numbers must be finite")


def _images(document: dict[str, Any], manifest: Manifest) -> NDArray[np.float32]:
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise BadRequestError(f"inputs must be a list of one tensor, named {INPUT!r}")
    tensor = _object(inputs[0], "inputs[0]")
    for field in ("name", "shape", "datatype", "data"):
        if field not in tensor:
            raise BadRequestError(f"inputs[0].{field} is missing")
    if tensor["name"] != INPUT:
        raise BadRequestError(f"inputs[0].name is {_show(tensor['name'])}: it must be {INPUT!r}")
    if tensor["datatype"] != "FP32":
        raise BadRequestError(
            f"inputs[0].datatype is {_show(tensor['datatype'])}: it must be 'FP32'"
        )
    if "parameters" in tensor:
        _object(tensor["parameters"], "inputs[0].parameters")
    shape = _shape(tensor["shape"], manifest)
    return _values(tensor["data"], shape)


def _shape(value: Any, manifest: Manifest) -> tuple[int, ...]:
    wanted = ["N", *manifest.input_shape]
    right = (
        isinstance(value, list)
        and all(type(size) is int and size > 0 for size in value)
        and value[1:] == list(manifest.input_shape)
    )
    if not right:
        raise BadRequestError(
            f"inputs[0].shape is {_show(value)}: it must be [{', '.join(map(str, wanted))}] "
            "with N of at least 1"
        )
    return tuple(value)


def _values(data: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if not isinstance(data, list):
        raise BadRequestError("inputs[0].data must be a list of numbers")
    try:
        array = np.asarray(data)
    except (ValueError, RecursionError, OverflowError):
        raise BadRequestError("inputs[0].data has rows of different lengths") from None
    if array.dtype.kind not in "iuf" or _has_truth_values(data):
        raise BadRequestError("inputs[0].data must have nothing but numbers in it")
    if array.ndim != 1 and array.shape != shape:
        raise BadRequestError(
            f"inputs[0].data is nested as {list(array.shape)}, but inputs[0].shape is {list(shape)}"
        )
    if array.size != math.prod(shape):
        raise BadRequestError(
            f"inputs[0].data has {array.size} numbers, but inputs[0].shape is {list(shape)}, "
            f"which needs {math.prod(shape)}"
        )
    with np.errstate(over="ignore"):
        values = array.astype(np.float32).reshape(shape)
    if not np.isfinite(values).all():
        raise BadRequestError("inputs[0].data has a number that is too large for FP32")
    return values


def _has_truth_values(data: Any) -> bool:
    """NumPy would take true for 1."""
    if isinstance(data, list):
        return any(map(_has_truth_values, data))
    return isinstance(data, bool)


def _outputs(document: dict[str, Any]) -> tuple[str, ...]:
    """The wanted outputs; all of them when none is named."""
    wanted = document.get("outputs")
    if wanted is None or wanted == []:
        return tuple(OUTPUTS)
    if not isinstance(wanted, list):
        raise BadRequestError("outputs must be a list")
    names: list[str] = []
    for index, output in enumerate(wanted):
        name = _object(output, f"outputs[{index}]").get("name")
        if not isinstance(name, str) or name not in OUTPUTS:
            raise BadRequestError(
                f"outputs[{index}].name is {_show(name)}: there are {', '.join(OUTPUTS)}"
            )
        if name in names:
            raise BadRequestError(f"outputs[{index}].name is {name!r} for the second time")
        names.append(name)
    return tuple(names)


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequestError(f"{field} must be an object")
    return value


def _show(value: Any) -> str:
    """A value as the client may recognise it, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
