"""The JSON schema of `Pulumi.<stack>.yaml`, made from the settings: `python -m gitops schema`."""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from gitops.engine import PROJECT
from gitops.files import write_text

FILE: Final = PROJECT / "gitops" / "config" / "stack.schema.json"
HELP = "write the JSON schema by which editors complete and check Pulumi.*.yaml"
DESCRIPTION = "Writes gitops/config/stack.schema.json from the settings."
EPILOG = """\
In an editor with the YAML language server, either write as a file's first line
  # yaml-language-server: $schema=gitops/config/stack.schema.json
or set yaml.schemas to {"gitops/config/stack.schema.json": "Pulumi.*.yaml"}.
"""
_SECURE: Final = {
    "type": "object",
    "description": "An encrypted value, as `pulumi config set --secret` writes it.",
    "properties": {"secure": {"type": "string"}},
    "required": ["secure"],
    "additionalProperties": False,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes: where to write, for tests."""
    parser.add_argument("--out", type=Path, default=FILE, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    write_text(options.out, text())
    return 0


def text() -> str:
    """The schema as the file has it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema (draft 2020-12): types, limits, choices, descriptions, and no unknown keys."""
    from gitops.environments.json_schema import Generator
    from infra.settings import PASSWORD_KEY, StackSettings
    from infra.settings.problems import full_key

    settings = StackSettings.model_json_schema(schema_generator=Generator)
    concerns = {full_key(name): value for name, value in settings["properties"].items()}
    concerns[full_key(PASSWORD_KEY)] = {"$ref": "#/$defs/secure"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An environment of the GPU platform (Pulumi.<stack>.yaml)",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": concerns,
                # Keys of other projects and providers are theirs.
                "patternProperties": {f"^(?!{full_key()})": {}},
                "additionalProperties": False,
                "required": [full_key(name) for name in settings["required"]],
            },
            "encryptionsalt": {"type": "string"},
            "encryptedkey": {"type": "string"},
            "secretsprovider": {"type": "string"},
            "environment": {},
        },
        "required": ["config"],
        "$defs": {**settings["$defs"], "secure": _SECURE},
    }
