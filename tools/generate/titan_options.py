"""Print the options of torchtitan's configurations as JSON schemas.

This program imports nothing from the project, so that it can run in torchtitan's environment.
"""

import dataclasses
import hashlib
import importlib
import json
import sys
import typing
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

import tyro
from pydantic import PydanticSchemaGenerationError, TypeAdapter
from torchtitan.models import _supported_models
from torchtitan.tools import utils

Schema = dict[str, Any]

MANAGED: Final = {
    "dump_folder",
    "checkpoint.enable",
    "checkpoint.folder",
    "checkpoint.create_seed_checkpoint",
    "checkpoint.load_step",
    "checkpoint.load_only",
    "checkpoint.last_save_model_only",
    "checkpoint.last_save_in_hf",
    "comm.mode",
}
"""Options that jobs must not set: run directory, resumption, export, and dry-run modes."""

SIZES: Final = ("parallelism", "training")
"""Sections whose integer options the preview needs; their defaults depend on the configuration."""


def main() -> None:
    """Print the options of every configuration of the models that torchtitan supports."""
    # Skip the GPU check: some configurations could otherwise be constructed only on specific GPUs.
    utils.has_cuda_capability = lambda *_: True
    definitions: dict[str, Schema] = {}
    modules: dict[str, dict[str, Schema]] = {}
    for name in sorted(_supported_models):
        try:
            registry = importlib.import_module(f"torchtitan.models.{name}.config_registry")
        except ModuleNotFoundError as error:
            sys.stderr.write(f"{name} is skipped: it needs {error.name}\n")
            continue
        modules[name] = {
            key: {"$ref": define(config, "", definitions), "defaults": sizes(config)}
            for key, config in configurations(registry)
        }
    found = {"torchtitan": version("torchtitan"), "modules": modules, "$defs": definitions}
    sys.stdout.write(json.dumps(found))


def configurations(registry: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and results of the functions in a registry that return configurations."""
    for key, function in sorted(vars(registry).items()):
        if not callable(function) or getattr(function, "__module__", "") != registry.__name__:
            continue
        try:
            config = function()
        except TypeError:
            continue  # a helper with arguments
        yield key, config


def sizes(config: Any) -> dict[str, dict[str, int]]:
    """Return the integer options of the sections in `SIZES`."""
    return {
        section: {
            name: value
            for name, value in sorted(dataclasses.asdict(getattr(config, section)).items())
            if type(value) is int
        }
        for section in SIZES
    }


def define(section: Any, path: str, definitions: dict[str, Schema]) -> str:
    """Add the definition of a section and return a reference to it."""
    hints = typing.get_type_hints(type(section), include_extras=True)
    properties = {}
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{path}{field.name}"
        if key in MANAGED or tyro.conf.Suppress in getattr(hints[field.name], "__metadata__", ()):
            continue
        if subcommands := alternatives(hints[field.name]):
            properties[field.name] = {"enum": subcommands, "$comment": "subcommand"}
        elif dataclasses.is_dataclass(value):
            properties[field.name] = {"$ref": define(value, f"{key}.", definitions)}
        elif (schema := value_schema(hints[field.name])) is not None:
            properties[field.name] = schema
    content = {"type": "object", "properties": properties, "additionalProperties": False}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
    name = f"{type(section).__qualname__.removesuffix('.Config')}-{digest}"
    definitions[name] = content
    return f"#/$defs/{name}"


def alternatives(hint: Any) -> list[str]:
    """Return the names of a section's alternatives (subcommands), or an empty list."""
    return [
        one.name
        for part in typing.get_args(hint)
        for one in getattr(part, "__metadata__", ())
        if type(one) is type(tyro.conf.subcommand())
    ]


def value_schema(hint: Any) -> Schema | None:
    """Return the schema of an option's type, or None if the command line cannot express it."""
    try:
        schema = TypeAdapter(hint).json_schema()
    except PydanticSchemaGenerationError:
        return None
    return schema if all(is_simple(one) for one in schema.get("anyOf", [schema])) else None


def is_simple(schema: Schema) -> bool:
    """Return whether a schema describes scalars (or null) or a list of strings."""
    if schema.get("type") == "array":
        return schema.get("items") == {"type": "string"}
    return "enum" in schema or schema.get("type") in {
        "string",
        "integer",
        "number",
        "boolean",
        "null",
    }


if __name__ == "__main__":
    main()
