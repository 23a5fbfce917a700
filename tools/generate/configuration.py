"""What is generated from the settings: docs/configuration.md and the editors' schema."""

import json
from collections.abc import Iterator
from typing import Any, Final

from infra.settings import StackSettings
from infra.settings.images import PASSWORD_KEY
from infra.settings.problems import PROJECT, full_key
from infra.settings.schema import Field, Schema, fields, nested, schema_of

PASSWORD: Final = full_key(PASSWORD_KEY)
_SECURE: Final = {
    "type": "object",
    "description": "An encrypted value, as `pulumi config set --secret` writes it.",
    "properties": {"secure": {"type": "string"}},
    "required": ["secure"],
    "additionalProperties": False,
}

_INTRODUCTION: Final = f"""\
# Configuration

<!-- Written by `make generate` from infra/settings/; edit it there. -->

Every environment is a file `Pulumi.<stack>.yaml` with one structured key per concern. Values are
checked while previewing, all at once: an error names the key, the value found and what is allowed.
Keys that are not listed here are errors. A key in bold has no default and must be written where
its section is used.

Set single values by path, for example `pulumi config set --path 'training.jobs.digits.nodes' 4`
(keys belong to the project `{PROJECT}`).

**Kinds of value.** *Quantity*: a Kubernetes quantity such as `500m`, `2` or `1.5Gi`; *size*: a
quantity of at least `1Mi`; *CPU*: cores in steps of `1m`. *Name*: lower-case letters, digits and
`-`. *Qualified name*: a name with an optional domain, such as `nvidia.com/gpu`. *Image*: a
reference with a tag other than `latest`, or a digest.

One secret stands outside the structure: `{PASSWORD}`, the password of
`images.username`, stored with `pulumi config set --secret {PASSWORD_KEY}`.

## What outlives the stack

`pulumi destroy` leaves the workloads' namespace where claims have `retain` or jobs have `on_change:
keep`, which are the defaults, together with those claims, the volumes bound to them and the runs.
The next `pulumi up` takes them over. `kubectl delete namespace` removes them; what the volumes
hold then depends on their reclaim policy. Where the stack installs Volcano, its Jobs go with it.

## How a run is named

A training job is named `<key>-<8 digits>`, and the digits are a hash of everything that the run is
made of: its manifests, which contain the hyperparameters, sizes, queue and placement, and the
identity of its image. So the same specification is always the same run, which is left alone, and
an edit creates exactly one new run. The earlier one stays in the cluster, running or finished,
unless `on_change` is `replace` (written at least one update before the edit, since the engine acts
on what it stored); `kubectl delete` removes what nobody needs any more. Going back to an earlier
specification takes over its run where it still exists, or makes it again.

The identity of an image is known before it is built. For `reference` it is the reference; for
`build` it is a hash of Dockerfile, `sources`, base image, arguments and platform. Changed training
code is thus a new run, and an edit elsewhere in the repository is not. An image that is built again
from the same sources may get another digest; runs that exist keep the one they started with.
"""


def page() -> str:
    """Return docs/configuration.md: every key, with its kind of value, default and meaning."""
    settings = schema_of(StackSettings)
    parts = [_INTRODUCTION]
    for field in fields(settings):
        for _, name in nested(field.schema):
            parts += _sections(field.name, settings["$defs"][name], settings["$defs"])
    return "\n".join(parts)


def _sections(path: str, section: Schema, definitions: Schema) -> Iterator[str]:
    level, title = ("###", path) if "." in path else ("##", full_key(path))
    yield f"{level} `{title}`\n"
    yield " ".join(section["description"].partition("\n\n")[0].split()) + "\n"
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    yield from (_row(field) for field in fields(section))
    yield ""
    for field in fields(section):
        for step, name in nested(field.schema):
            yield from _sections(f"{path}.{field.name}{step}", definitions[name], definitions)


def _row(field: Field) -> str:
    key = f"**`{field.name}`**" if field.required else f"`{field.name}`"
    cells = (key, field.kind, field.default, field.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def schema_file() -> str:
    """Return gitops/config/stack.schema.json."""
    return json.dumps(stack_schema(), indent=1, ensure_ascii=False) + "\n"


def stack_schema() -> dict[str, Any]:
    """Return the JSON schema of `Pulumi.<stack>.yaml`, which has no unknown keys.

    Environment variables may be secret.
    """
    settings = _with_secrets(schema_of(StackSettings))
    concerns = {full_key(name): value for name, value in settings["properties"].items()}
    concerns[PASSWORD] = {"$ref": "#/$defs/secure"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An environment of the GPU platform (Pulumi.<stack>.yaml)",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": concerns,
                # Keys of other projects and providers belong to them.
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


def _with_secrets(settings: Schema) -> Schema:
    """Return a copy in which every value of an `env` may be encrypted."""
    copied: Schema = json.loads(json.dumps(settings))
    for section in copied["$defs"].values():
        env = section["properties"].get("env", {})
        if "additionalProperties" in env:
            texts = env["additionalProperties"]
            env["additionalProperties"] = {"anyOf": [texts, {"$ref": "#/$defs/secure"}]}
    return copied
