"""GET /openapi.json: all paths and responses of one port, as OpenAPI 3.1."""

from http import HTTPStatus
from typing import Any, Final

from inference.config import InferenceConfig
from inference.engine.interface import Served, TensorSpec
from inference.http.application import Route, Routes
from inference.protocol.v2_json import SERVER_NAME, SERVER_VERSION

Document = dict[str, Any]

_JSON_LENGTH: Final = "Inference-Header-Content-Length"
_JSON_LENGTH_TEXT: Final = "Bytes of JSON before the binary values"
_RETRYABLE: Final = (429, 503, 504)

_NOT_READY: Final = ("Live", "Ready", "ModelReady")
"""Schemas that describe both the 200 and the 503 responses of an endpoint."""

_STRING: Final[Document] = {"type": "string"}
_INTEGER: Final[Document] = {"type": "integer"}
_BOOLEAN: Final[Document] = {"type": "boolean"}
_STRINGS: Final[Document] = {"type": "array", "items": _STRING}
_ANY_OBJECT: Final[Document] = {"type": "object"}


def openapi_document(config: InferenceConfig, served: Served | None, routes: Routes) -> Document:
    """Return the OpenAPI document for the routes of a port.

    The body of …/infer depends on the served model.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": SERVER_NAME,
            "version": SERVER_VERSION,
            "description": "Open Inference Protocol V2.",
        },
        "paths": {
            path.replace("{model}", config.model_name): {
                route.method.lower(): _operation(route) | (_infer(served) if route.counted else {})
            }
            for path, route in routes.items()
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        **({"security": [{"bearer": []}, {"key": []}]} if config.api_keys_file else {}),
    }


def _operation(route: Route) -> Document:
    responses = {200: _response(route.schema, "Success")}
    for code in (*route.errors, *((401, 403) if route.scope else ())):
        responses[code] = _response("Error", HTTPStatus(code).phrase)
        if code in _RETRYABLE:
            responses[code]["headers"] = {"Retry-After": _header("Seconds")}
    if route.schema in _NOT_READY:
        responses[503] = _response(route.schema, "Not ready; `reason` states why")
    if route.counted:
        responses[200]["headers"] = {_JSON_LENGTH: _header(_JSON_LENGTH_TEXT)}
        responses[200]["content"]["application/octet-stream"] = {}
    return {
        "summary": route.summary,
        "responses": {str(code): response for code, response in responses.items()},
    }


def _response(schema: str, text: str) -> Document:
    media = "text/plain" if schema == "Text" else "application/json"
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": text, "content": {media: {"schema": reference}}}


def _header(text: str, schema: Document = _INTEGER) -> Document:
    return {"description": text, "schema": schema}


def _infer(served: Served | None) -> Document:
    tensors = [_tensor(spec) for spec in served.inputs] if served else [_ANY_OBJECT]
    names = {"enum": [spec.name for spec in served.outputs]} if served else _STRING
    inputs = {
        "type": "array",
        "items": tensors[0] if len(tensors) == 1 else {"anyOf": tensors},
        "minItems": len(tensors),
        "maxItems": len(tensors),
    }
    outputs = {"type": "array", "items": _object({"name": names})}
    body = _object({"inputs": inputs}, id=_STRING, parameters=_ANY_OBJECT, outputs=outputs)
    timeout = "Seconds after which the response is no longer useful"
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
    headers = {
        "X-Request-Timeout": _header(timeout, seconds),
        _JSON_LENGTH: _header(_JSON_LENGTH_TEXT, _INTEGER | {"minimum": 0}),
    }
    return {
        "parameters": [{"name": name, "in": "header", **found} for name, found in headers.items()],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


def _tensor(spec: TensorSpec) -> Document:
    sizes = [{"type": "integer", "minimum": 1} if n == -1 else {"const": n} for n in spec.shape]
    return _object(
        {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": {"type": "array", "prefixItems": sizes, "items": False},
        },
        data={"type": "array"},
        parameters=_ANY_OBJECT,
    )


def _object(required: Document, **optional: Document) -> Document:
    return {"type": "object", "properties": required | optional, "required": list(required)}


_SHAPE: Final[Document] = {"type": "array", "items": _INTEGER}
_METADATA: Final[Document] = {"name": _STRING, "datatype": _STRING, "shape": _SHAPE}
_TENSORS: Final[Document] = {"type": "array", "items": _object(_METADATA)}
_OUTPUTS: Final[Document] = {"type": "array", "items": _object(_METADATA, data={})}

_SCHEMAS: Final[Document] = {
    "Text": _STRING,
    "Object": _ANY_OBJECT,
    "Error": _object({"error": _STRING}),
    "Live": _object({"live": _BOOLEAN}),
    "Ready": _object({"ready": _BOOLEAN}, reason=_STRING),
    "ModelReady": _object({"name": _STRING, "ready": _BOOLEAN}, reason=_STRING),
    "Server": _object({"name": _STRING, "version": _STRING, "extensions": _STRINGS}),
    "Model": _object(
        {
            "name": _STRING,
            "versions": _STRINGS,
            "platform": _STRING,
            "inputs": _TENSORS,
            "outputs": _TENSORS,
            "parameters": _ANY_OBJECT,
        }
    ),
    "InferResponse": _object(
        {"model_name": _STRING, "model_version": _STRING, "outputs": _OUTPUTS}, id=_STRING
    ),
    "Index": {"type": "array", "items": _object({"name": _STRING, "state": _STRING})},
    "Loaded": _object({"name": _STRING, "version": _STRING}),
}
