"""GET /openapi.json: all paths and responses of this server, as OpenAPI 3.1."""

from typing import Any, Final

from inference.config import InferenceConfig
from inference.engine.interface import Served, TensorSpec
from inference.protocol.v2_json import SERVER_NAME, SERVER_VERSION

Document = dict[str, Any]

_REASONS: Final = {
    400: "Invalid request; `error` names the field",
    401: "API key required",
    403: "The API key lacks the scope",
    404: "Another model or version is served",
    408: "The body did not arrive in time",
    409: "The new version cannot be served; the previous one stays in service",
    413: "Body too large",
    415: "Content-Encoding not supported",
    429: "Queue full",
    503: "No model is loaded, or the workers that computed the request died",
    504: "The deadline passed before the request was computed",
}
_INFER_ERRORS: Final = (400, 401, 404, 408, 413, 415, 429, 503, 504)
_RETRY_ERRORS: Final = (429, 503, 504)

_STRING: Final[Document] = {"type": "string"}
_BOOLEAN: Final[Document] = {"type": "boolean"}
_STRINGS: Final[Document] = {"type": "array", "items": _STRING}
_ANY_OBJECT: Final[Document] = {"type": "object"}


def description(config: InferenceConfig, served: Served | None, admin: bool) -> Document:
    """Return the description of a port; the body of …/infer is that of the loaded model."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": SERVER_NAME,
            "version": SERVER_VERSION,
            "description": "Open Inference Protocol V2.",
        },
        "paths": {
            "/v2/health/live": _get("Liveness", "Live", not_ready=True),
            "/v2/health/ready": _get("Readiness", "Ready", not_ready=True),
            "/openapi.json": {"get": _operation("This description", _answer(_ANY_OBJECT))},
            **(_admin_paths(config) if admin else _client_paths(config, served)),
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


def _client_paths(config: InferenceConfig, served: Served | None) -> Document:
    model = f"/v2/models/{config.model_name}"
    return {
        "/v2": _get("Server metadata", "Server", 401),
        model: _get("Model metadata", "Model", 401, 404, 503),
        f"{model}/ready": _get("Readiness of the model", "ModelReady", 404, not_ready=True),
        f"{model}/infer": {"post": _infer(served)},
    }


def _admin_paths(config: InferenceConfig) -> Document:
    index, loaded = _answer(_ref("Index")), _answer(_ref("Loaded"))
    load = _operation("Serve the current content of the model's directory", loaded, 401, 404, 409)
    metrics = _operation("Prometheus metrics", _answer(_STRING, media="text/plain"))
    return {
        "/v2/repository/index": {"post": _operation("List the models", index, 401)},
        f"/v2/repository/models/{config.model_name}/load": {"post": load},
        "/metrics": {"get": metrics},
    }


def _get(summary: str, schema: str, *errors: int, not_ready: bool = False) -> Document:
    operation = _operation(summary, _answer(_ref(schema)), *errors)
    if not_ready:
        text = "Not ready; `reason` has the cause"
        operation["responses"]["503"] = _answer(_ref(schema), text)
    return {"get": operation}


def _infer(served: Served | None) -> Document:
    name, text = "Inference-Header-Content-Length", "Bytes of JSON before the binary values"
    answer = _answer(_ref("InferResponse"))
    answer["headers"] = {name: {"description": text, "schema": {"type": "integer"}}}
    answer["content"]["application/octet-stream"] = {}
    timeout = "Seconds after which the response is no longer useful"
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
    return {
        **_operation("Inference", answer, *_INFER_ERRORS),
        "parameters": [
            _header("X-Request-Timeout", timeout, seconds),
            _header(name, text, {"type": "integer", "minimum": 0}),
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _infer_request(served)}},
        },
    }


def _header(name: str, text: str, schema: Document) -> Document:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _operation(summary: str, answer: Document, *errors: int) -> Document:
    # A request that needs a key also needs its scope.
    codes = (*errors, 403) if 401 in errors else errors
    responses = {code: _answer(_ref("Error"), _REASONS[code]) for code in codes}
    for code in set(errors) & set(_RETRY_ERRORS):
        responses[code]["headers"] = {
            "Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}
        }
    answers = {str(code): found for code, found in ({200: answer} | responses).items()}
    return {"summary": summary, "responses": answers}


def _answer(schema: Document, text: str = "Success", media: str = "application/json") -> Document:
    return {"description": text, "content": {media: {"schema": schema}}}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _infer_request(served: Served | None) -> Document:
    tensors = [_tensor(spec) for spec in served.inputs] if served else [_ANY_OBJECT]
    names = {"enum": [spec.name for spec in served.outputs]} if served else _STRING
    inputs = {
        "type": "array",
        "items": tensors[0] if len(tensors) == 1 else {"anyOf": tensors},
        "minItems": len(tensors),
        "maxItems": len(tensors),
    }
    outputs = {"type": "array", "items": _object({"name": names})}
    return _object({"inputs": inputs}, id=_STRING, parameters=_ANY_OBJECT, outputs=outputs)


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


_SHAPE: Final[Document] = {"type": "array", "items": {"type": "integer"}}
_METADATA: Final[Document] = {"name": _STRING, "datatype": _STRING, "shape": _SHAPE}
_TENSORS: Final[Document] = {"type": "array", "items": _object(_METADATA)}
_OUTPUTS: Final[Document] = {"type": "array", "items": _object(_METADATA, data={})}

_SCHEMAS: Final[Document] = {
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
