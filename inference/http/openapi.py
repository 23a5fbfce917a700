"""GET /openapi.json: what can be asked and every answer, as OpenAPI 3.1."""

from typing import Any, Final

from inference.config import InferenceConfig
from inference.engine.interface import Served
from inference.http.schemas import SCHEMAS, infer_request
from inference.protocol.metadata import SERVER, VERSION

Document = dict[str, Any]

_REASONS: Final = {
    400: "The request is at fault; `error` names the field",
    401: "An API key is needed",
    404: "Another model or version is served",
    408: "The body did not arrive in time",
    409: "The new version is not served; the old one still is",
    413: "The body is too large",
    415: "The Content-Encoding is not taken",
    429: "Too much waits already",
    503: "There is no model, or the worker that computed the request died",
    504: "The deadline passed before the request was computed",
}
_COMPUTED: Final = (400, 401, 404, 408, 413, 415, 429, 503, 504)


def description(config: InferenceConfig, served: Served | None) -> Document:
    """The description of this server; request bodies as the present model takes them."""
    model = f"/v2/models/{config.model_name}"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": SERVER,
            "version": VERSION,
            "description": "Open Inference Protocol V2.",
        },
        "paths": {
            "/v2": _get("The server", "Server", 401),
            "/v2/health/live": _get("Whether the process lives", "Live"),
            "/v2/health/ready": _get("Whether requests should come", "Ready", not_ready=True),
            model: _get("The model", "Model", 401, 404, 503),
            f"{model}/ready": _get("Whether the model is ready", "ModelReady", 404, not_ready=True),
            f"{model}/infer": _infer(served),
            "/v2/repository/index": {
                "post": _operation("The models", {200: _answer("Index")}, 401)
            },
            f"/v2/repository/models/{config.model_name}/load": {
                "post": _operation(
                    "Serve what the model's folder holds now",
                    {200: _answer("Loaded")},
                    *(401, 404, 409),
                )
            },
            "/metrics": {"get": _operation("Prometheus' metrics", {200: _text("text/plain")})},
            "/openapi.json": {
                "get": _operation("This description", {200: _content({"type": "object"})})
            },
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        **({"security": [{"bearer": []}, {"key": []}]} if config.api_keys_file else {}),
    }


def _get(summary: str, schema: str, *codes: int, not_ready: bool = False) -> Document:
    answers = {200: _answer(schema)}
    if not_ready:
        answers[503] = _answer(schema, "Requests should not come; `reason` tells why")
    return {"get": _operation(summary, answers, *codes)}


def _infer(served: Served | None) -> Document:
    answer = _answer("InferResponse")
    answer["headers"] = {
        "Inference-Header-Content-Length": {
            "description": "bytes of JSON before the binary values",
            "schema": {"type": "integer"},
        }
    }
    answer["content"]["application/octet-stream"] = {}
    operation = _operation("Inference", {200: answer}, *_COMPUTED)
    operation["parameters"] = [_TIMEOUT, _HEADER_LENGTH]
    operation["requestBody"] = {"required": True, "content": _json(infer_request(served))}
    return {"post": operation}


def _operation(summary: str, answers: dict[int, Document], *codes: int) -> Document:
    errors = {code: _error(code) for code in codes}
    return {
        "summary": summary,
        "responses": {str(code): answer for code, answer in (errors | answers).items()},
    }


def _error(code: int) -> Document:
    error = _content(_ref("Error"))
    error["description"] = _REASONS[code]
    if code in (429, 503, 504):
        error["headers"] = {
            "Retry-After": {"description": "seconds", "schema": {"type": "integer"}}
        }
    return error


def _answer(schema: str, said: str = "The answer") -> Document:
    return {"description": said, "content": _json(_ref(schema))}


def _content(schema: Document) -> Document:
    return {"description": "The answer", "content": _json(schema)}


def _text(media_type: str) -> Document:
    return {"description": "The answer", "content": {media_type: {"schema": {"type": "string"}}}}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


_TIMEOUT: Final[Document] = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "seconds after which the answer is of no use",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400},
}
_HEADER_LENGTH: Final[Document] = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "bytes of JSON before the binary values",
    "schema": {"type": "integer", "minimum": 0},
}
