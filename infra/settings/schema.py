"""The JSON schema of the settings, and functions that traverse it.

Everything that is derived from the settings uses this schema: the documentation, the schema of
`Pulumi.<stack>.yaml` for editors, the comparison of environments, error messages and the arguments
of the Pulumi plugin.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

Schema = dict[str, Any]

DERIVED_HYPERPARAMETERS: Final = frozenset({"run_dir", "data_dir"})
"""Hyperparameters that the stack derives from the run's name and claims."""

_LIMITS: Final = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@lru_cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON schema (draft 2020-12) of a model, without the keys that the stack sets.

    The result is cached: do not modify it.
    """
    return model.model_json_schema(schema_generator=_Generator)


@dataclass(frozen=True)
class Field:
    """A key of a section, with its schema and its documentation."""

    name: str
    schema: Schema
    required: bool

    @property
    def description(self) -> str:
        """Meaning of the key, or an empty string."""
        return str(self.schema.get("description", ""))

    @property
    def kind(self) -> str:
        """Kind of value and its limits, such as `integer, ≥ 1`."""
        limits = [
            f"{sign} {alternative[key]}"
            for alternative in alternatives(self.schema)
            for key, sign in _LIMITS.items()
            if key in alternative
        ]
        return ", ".join([_kind(self.schema), *limits])

    @property
    def default(self) -> str:
        """Default as Markdown: `none` if the key is required, `empty` for an empty value."""
        if self.required:
            return "none"
        value = self.schema["default"]
        if value in ({}, [], ""):
            return "empty"
        return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def fields(section: Schema) -> Iterator[Field]:
    """Yield the keys of a section."""
    required = section.get("required", ())
    for name, schema in section["properties"].items():
        yield Field(name, schema, name in required)


def alternatives(schema: Schema) -> list[Schema]:
    """Return the alternatives of a schema; a value must match at least one of them."""
    schemas: list[Schema] = schema.get("anyOf", [schema])
    return schemas


def nested(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the relative path and the name of each section nested in the value of a key."""
    for alternative in alternatives(schema):
        if "$ref" in alternative:
            yield path, definition_name(alternative)
        elif "items" in alternative:
            yield from nested(alternative["items"], f"{path}[]")
        elif isinstance(inner := alternative.get("additionalProperties"), dict):
            yield from nested(inner, f"{path}.<key>")


def definition_name(reference: Schema) -> str:
    """Return the name under `$defs` to which a schema refers."""
    return str(reference["$ref"]).rpartition("/")[2]


def description(model: type[BaseModel], path: Sequence[str | int]) -> str:
    """Return the meaning of the key at a path inside a model, or an empty string."""
    return next((str(schema.get("description", "")) for schema in _find(model, path)), "")


def has_key(model: type[BaseModel], path: Sequence[str | int]) -> bool:
    """Return whether a model, or a section, list or mapping inside it, has a key at a path."""
    return bool(_find(model, path))


def keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys of the section at a path inside a model."""
    root = schema_of(model)
    return [
        key
        for schema in _find(model, path)
        for section in _sections(schema, root)
        for key in section.get("properties", ())
    ]


def every_key(model: type[BaseModel]) -> set[str]:
    """Return the keys of all sections of a model."""
    root = schema_of(model)
    sections = (root, *root.get("$defs", {}).values())
    return {key for section in sections for key in section.get("properties", ())}


def _find(model: type[BaseModel], path: Sequence[str | int]) -> list[Schema]:
    root = schema_of(model)
    schemas = [root]
    for part in path:
        schemas = [
            inner
            for schema in schemas
            for section in _sections(schema, root)
            if (inner := _child(section, part)) is not None
        ]
    return schemas


def _sections(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema, with references resolved."""
    return [
        root["$defs"][definition_name(alternative)] if "$ref" in alternative else alternative
        for alternative in alternatives(schema)
    ]


def _child(schema: Schema, part: str | int) -> Schema | None:
    inner = schema.get("items", schema.get("additionalProperties"))
    if "properties" in schema:
        inner = schema["properties"].get(str(part))
    return inner if isinstance(inner, dict) else None


def _kind(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(alternative) for alternative in schema["anyOf"])
    if "$ref" in schema:
        return "section"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "format" in schema:
        return str(schema["format"]).replace("-", " ")
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object":
        inner = schema["additionalProperties"]
        return f"mapping to {_kind(inner) if isinstance(inner, dict) else 'anything'}"
    return str(schema.get("type", "anything"))


class _Generator(GenerateJsonSchema):
    """Pydantic's schema generator, without titles, and with defaults as in a settings file."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        """Return the default, even if a factory builds it."""
        factory = schema.get("default_factory")
        return factory() if factory is not None else super().get_default_value(schema)  # type: ignore[call-arg]  # no factory takes data

    def encode_default(self, dft: Any) -> Any:
        """Return the default as JSON; for a section, only the keys that are set."""
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", exclude_unset=True)
        if isinstance(dft, list | tuple):
            return [self.encode_default(item) for item in dft]
        return super().encode_default(dft)

    def generate(
        self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation"
    ) -> JsonSchemaValue:
        """Return the complete schema."""
        generated = super().generate(schema, mode)
        _remove_titles(generated)
        for section in (generated, *generated.get("$defs", {}).values()):
            for field in section.get("properties", {}).values():
                # Pydantic omits a description that equals the docstring of the section.
                if "$ref" in field and "description" not in field:
                    field["description"] = generated["$defs"][definition_name(field)]["description"]
        if hyperparameters := generated.get("$defs", {}).get("TrainingConfig"):
            for name in DERIVED_HYPERPARAMETERS:
                del hyperparameters["properties"][name]
            for field in hyperparameters["properties"].values():
                # The descriptions are docstrings, which may span several lines.
                field["description"] = " ".join(field["description"].split())
        return generated


def _remove_titles(schema: Any) -> None:
    """Remove the titles, which only repeat the keys, from a schema in place."""
    if isinstance(schema, list):
        for item in schema:
            _remove_titles(item)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    for key, item in schema.items():
        if key in ("properties", "$defs"):
            for inner in item.values():
                _remove_titles(inner)
        elif key != "default":
            _remove_titles(item)
