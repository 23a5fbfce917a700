"""Generated references: docs/configuration.md, and the schemas of stack files and torchtitan."""

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from devcluster.paths import CHECKOUT
from infra.settings import StackSettings
from infra.settings.images import PASSWORD_KEY
from infra.settings.problems import PROJECT, full_key
from infra.settings.schema import Field, Schema, fields, nested, schema_of
from tools.environments import environment

PASSWORD: Final = full_key(PASSWORD_KEY)
_SECURE: Final = {
    "type": "object",
    "description": "An encrypted value, as `pulumi config set --secret` writes it.",
    "properties": {"secure": {"type": "string"}},
    "required": ["secure"],
    "additionalProperties": False,
}

_REFERENCES: Final = {"training.sweeps.<key>.job": "training.jobs.<key>"}
"""Maps each section to the section with the same keys, to which the page links."""

_INTRODUCTION: Final = f"""\
# Configuration

<!-- Written by `make generate` from infra/settings/; edit it there. -->

This page is for everyone who edits a stack file. Each environment has a `Pulumi.<stack>.yaml` file
with one structured key per topic. All values are validated before a preview; errors state the key,
the value found and the allowed values. Unknown keys are errors. A key in bold has no default and is
required if its section is used.

To set a single value, use its path, for example
`pulumi config set --path 'training.jobs.digits.nodes' 4`. All keys belong to the `{PROJECT}`
project.

| value | meaning |
| --- | --- |
| quantity | Kubernetes quantity, such as `500m`, `2` or `1.5Gi` |
| size | quantity of at least `1Mi` |
| CPU | cores in steps of `1m` |
| name | lower-case letters, digits and `-`; some names, such as host names, also allow `.` |
| qualified name | name with an optional domain, such as `nvidia.com/gpu` |
| image | image reference with a digest, or with a tag other than `latest` |
| section | object with the keys in a table below |
| list of X | list whose items are X |
| mapping to X | object with keys of your choice, whose values are X |

One secret is not part of a section: `{PASSWORD}`, the password for `images.username`. Store it
with `pulumi config set --secret {PASSWORD_KEY}`.

## What `pulumi destroy` keeps

`pulumi destroy` keeps namespaces, claims with `retain: true`, the volumes bound to them, and the
runs of jobs with `on_change: keep`; both values are the defaults. The next `pulumi up` adopts all
of these objects. To remove them, run `kubectl delete namespace`; the reclaim policy of the volumes
then applies to their data. If the stack installs Volcano, however, `pulumi destroy` deletes all
Volcano Jobs, including these runs.

## Run names

The run of a training job is named `<key>-<8 hex digits>`. The digits are a hash of the
specification: the job's settings, as written in the file, and the identity of its image. If the
specification stays the same, `pulumi up` leaves the run unchanged; an edit creates exactly one new
run. Edits in other sections do not start a new run; neither do new defaults or template changes in
this project. To choose the name yourself, set `run`. To rename a job and keep its current run, set
`run` to the name of that run.

The previous run stays in the cluster, running or finished, unless `on_change` is `replace`. The
engine uses the value from the previous update, so change `on_change` at least one update before you
edit the job. Use `kubectl delete` to delete runs that are no longer needed. If you restore an
earlier specification, the update adopts its run if it still exists, and re-creates it otherwise.

The identity of an image is known before the image is built. With `reference`, the identity is the
reference. With `build`, it is a hash of the Dockerfile, `sources`, base image, arguments, platform
and target.
Files in this project's own directories, such as `training/`, do not count: changing your own
sources starts a new run, but upgrading this project does not. If an image is rebuilt from the same
sources, its digest may change; existing runs keep their image.
"""


def page() -> str:
    """Return docs/configuration.md, with the type, default and meaning of every key."""
    settings = schema_of(StackSettings)
    parts = [_INTRODUCTION]
    for field in fields(settings):
        for _, name in nested(field.schema):
            parts += _sections(field.name, settings["$defs"][name], settings["$defs"])
    return "\n".join(parts)


def _sections(path: str, section: Schema, definitions: Schema) -> Iterator[str]:
    if path in _REFERENCES:
        same = _REFERENCES[path]
        yield f"### `{path}`\n"
        anchor = re.sub("[^a-z0-9_-]", "", same)
        yield f"This section has the same keys as [`{same}`](#{anchor}).\n"
        return
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
    """Return the JSON schema of `Pulumi.<stack>.yaml`, which rejects unknown keys.

    Values in `env` may be encrypted.
    """
    settings = _with_secrets(schema_of(StackSettings))
    sections = {full_key(name): value for name, value in settings["properties"].items()}
    sections[PASSWORD] = {"$ref": "#/$defs/secure"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An environment of the GPU platform (Pulumi.<stack>.yaml)",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": sections,
                # Keys of other projects and providers are not checked.
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
    """Return a copy of the schema in which the values of each `env` may be encrypted."""
    copied: Schema = json.loads(json.dumps(settings))
    for section in copied["$defs"].values():
        env = section["properties"].get("env", {})
        if "additionalProperties" in env:
            texts = env["additionalProperties"]
            env["additionalProperties"] = {"anyOf": [texts, {"$ref": "#/$defs/secure"}]}
    return copied


TITAN_PINS: Final = CHECKOUT / "requirements/torchtitan.txt"
TITAN_SCHEMA: Final = CHECKOUT / "infra/settings/training/torchtitan.json"


def titan_schema() -> str:
    """Return the text of torchtitan.json, which is regenerated only if the pins have changed.

    The packages are large, so `make check` does not install them.
    """
    pins = hashlib.sha256(TITAN_PINS.read_bytes()).hexdigest()
    text = TITAN_SCHEMA.read_text()
    return text if json.loads(text)["requirements"] == pins else new_titan_schema(pins)


def new_titan_schema(pins: str) -> str:
    """Return the options of the pinned torchtitan version, and the `pins` hash, as JSON."""
    program = Path(__file__).with_name("titan_options.py")
    command = [str(environment("torchtitan", inherits=True)), str(program)]
    options = json.loads(subprocess.check_output(command, text=True))
    return json.dumps({"requirements": pins, **options}, indent=1) + "\n"
