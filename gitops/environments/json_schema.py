"""How the settings' types are written in a JSON schema for people who write YAML."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from infra.settings import types

_NUMBERS = {"type": ["string", "number"]}
"""YAML reads `cpu: 2` as a number, and the settings take it for a quantity."""


class Generator(GenerateJsonSchema):
    """Pydantic's own, with quantities that may be numbers, secrets in `env`, and no titles."""

    def function_before_schema(
        self, schema: core_schema.BeforeValidatorFunctionSchema
    ) -> JsonSchemaValue:
        """A validator that runs before: of a quantity, text or a number."""
        inner = super().function_before_schema(schema)
        return {**inner, **_NUMBERS} if schema["function"]["function"] is _AS_TEXT else inner

    def generate(
        self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation"
    ) -> JsonSchemaValue:
        """The whole schema."""
        found = super().generate(schema, mode)
        _tidy(found)
        return found


def _tidy(schema: Any) -> None:
    """Removes titles, which repeat the keys, and lets environment variables be secret, in place."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    properties = schema.get("properties")
    if isinstance(properties, dict) and isinstance(properties.get("env"), dict):
        texts = properties["env"].get("additionalProperties")
        secure = {"$ref": "#/$defs/secure"}
        properties["env"]["additionalProperties"] = {"anyOf": [texts, secure]}
    for key, item in schema.items():
        if key == "properties":
            for field in item.values():
                _tidy(field)
        elif key != "default":
            _tidy(item)


def _quantity_reader() -> Any:
    """The validator that all quantities begin with (infra/settings/types.py)."""
    reader = types.Quantity.__metadata__[0]  # type: ignore[attr-defined] # of Annotated
    return reader.func


_AS_TEXT = _quantity_reader()
