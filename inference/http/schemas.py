"""JSON Schemas of requests and answers."""

from typing import Any, Final

from inference.engine.interface import Served, TensorSpec

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_SHAPE: Final[Schema] = {"type": "array", "items": {"type": "integer"}}


def infer_request(served: Served | None) -> Schema:
    """The body of …/infer, as exactly as is known of the model."""
    tensors = [_tensor(spec) for spec in served.inputs] if served else [{"type": "object"}]
    count = len(tensors)
    output: Schema = {"properties": {"name": _TEXT}, "required": ["name"], "type": "object"}
    if served is not None:
        output["properties"]["name"] = {"enum": [spec.name for spec in served.outputs]}
    return _object(
        {
            "inputs": {
                "type": "array",
                "items": tensors[0] if count == 1 else {"anyOf": tensors},
                "minItems": count,
                "maxItems": count,
            }
        },
        id=_TEXT,
        parameters={"type": "object"},
        outputs={"type": "array", "items": output},
    )


def _tensor(spec: TensorSpec) -> Schema:
    sizes = [{"type": "integer", "minimum": 1} if n == -1 else {"const": n} for n in spec.shape]
    return _object(
        {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": {"type": "array", "prefixItems": sizes, "items": False},
        },
        data={"type": "array"},
        parameters={"type": "object"},
    )


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
    }


_METADATA: Final = _object({"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE})

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object({"error": _TEXT}),
    "Live": _object({"live": {"type": "boolean"}}),
    "Ready": _object({"ready": {"type": "boolean"}}, reason=_TEXT),
    "ModelReady": _object({"name": _TEXT, "ready": {"type": "boolean"}}, reason=_TEXT),
    "Server": _object(
        {"name": _TEXT, "version": _TEXT, "extensions": {"type": "array", "items": _TEXT}}
    ),
    "Model": _object(
        {
            "name": _TEXT,
            "versions": {"type": "array", "items": _TEXT},
            "platform": _TEXT,
            "inputs": {"type": "array", "items": _METADATA},
            "outputs": {"type": "array", "items": _METADATA},
            "parameters": {"type": "object"},
        }
    ),
    "InferResponse": _object(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": {
                "type": "array",
                "items": {**_METADATA, "properties": {**_METADATA["properties"], "data": {}}},
            },
        },
        id=_TEXT,
    ),
    "Index": {"type": "array", "items": _object({"name": _TEXT, "state": _TEXT})},
    "Loaded": _object({"name": _TEXT, "version": _TEXT}),
}
