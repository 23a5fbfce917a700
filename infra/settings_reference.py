"""`python -m infra.settings_reference` writes docs/configuration.md from the settings' models."""

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.settings import PASSWORD_KEY, StackSettings
from infra.settings import types as kinds
from infra.settings.problems import PROJECT, full_key
from infra.settings.training import DECIDED_BY_STACK
from training.config import TrainingConfig

PAGE: Final = Path(__file__).parent.parent / "docs" / "configuration.md"

_KINDS: Final[dict[int, str]] = {
    id(getattr(kinds, name)): text
    for name, text in {
        "Quantity": "quantity",
        "MemoryQuantity": "size",
        "CpuQuantity": "CPU",
        "DnsLabel": "name",
        "DnsName": "name",
        "RunKey": "name",
        "QualifiedName": "qualified name",
        "LabelValue": "text",
        "EnvironmentName": "name",
        "AbsolutePath": "absolute path",
        "VersionedImage": "image",
        "PinnedImage": "image by digest",
    }.items()
}

_INTRODUCTION: Final = f"""\
# Configuration

<!-- Written by `python -m infra.settings_reference` from infra/settings/; edit it there. -->

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

One secret stands outside the structure: `{full_key(PASSWORD_KEY)}`, the password of
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


def reference() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION]
    for concern, field in StackSettings.model_fields.items():
        (model,) = _models(field.annotation)
        parts += _sections(full_key(concern), concern, model)
    return "\n".join(parts)


def _sections(title: str, path: str, model: type[BaseModel]) -> Iterator[str]:
    level = "##" if "." not in path else "###"
    yield f"{level} `{title}`\n"
    yield f"{_summary(model)}\n"
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        if model is not TrainingConfig or name not in DECIDED_BY_STACK:
            yield _row(name, field)
    yield ""
    for name, field in model.model_fields.items():
        for nested in _models(field.annotation):
            place = f"{path}.{name}{_step(field.annotation)}"
            yield from _sections(place, place, nested)


def _row(name: str, field: FieldInfo) -> str:
    key = f"**`{name}`**" if field.is_required() else f"`{name}`"
    cells = (key, value_of(field), default_of(field), field.description or "")
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _summary(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def value_of(field: FieldInfo) -> str:
    """The kind of value of a setting, and its limits."""
    text = _kind(field.annotation, field.metadata)
    limits = [
        f"{sign} {limit}"
        for item in field.metadata
        for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if (limit := getattr(item, attribute, None)) is not None
    ]
    return ", ".join([text, *limits])


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """The kind of value in a word or two."""
    known = _known(annotation, metadata)
    if known is not None:
        return known
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(
            "null" if part is types.NoneType else _kind(part, []) for part in arguments
        )
    if origin is Annotated:
        return _kind(arguments[0], list(arguments[1:]))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return f"list of {_kind(arguments[0], [])}"
    if origin is dict:
        return f"mapping to {_kind(arguments[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(
        annotation, "path" if "Path" in str(annotation) else "anything"
    )


def _known(annotation: Any, metadata: list[Any]) -> str | None:
    """The kind that infra/settings/types.py gives a name to, also where pydantic unpacked it."""
    fitting = [
        kind
        for kind in vars(kinds).values()
        if id(kind) in _KINDS
        and (kind is annotation or _begins(metadata, list(get_args(kind)[1:])))
    ]
    # A size is a quantity with one more rule: the kind with most rules is meant.
    return _KINDS[id(max(fitting, key=lambda kind: len(get_args(kind))))] if fitting else None


def _begins(metadata: list[Any], rules: list[Any]) -> bool:
    return metadata[: len(rules)] == rules


def default_of(field: FieldInfo) -> str:
    """A setting's default, or `none` where it must be written."""
    if field.is_required():
        return "none"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, list):
        value = [v.model_dump(exclude_unset=True) if isinstance(v, BaseModel) else v for v in value]
    if value in ({}, [], (), ""):
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value, default=str)}`"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _models(part)


def _step(annotation: Any) -> str:
    origin = get_origin(annotation)
    return ".<key>" if origin is dict else "[]" if origin is list else ""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(reference())
