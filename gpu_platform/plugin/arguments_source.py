"""`python -m gpu_platform.plugin.arguments_source` writes arguments.py from the settings' models.

Pulumi takes a plugin's schema from typed dictionaries and the texts below their fields; the
settings know all of that already.
"""

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.settings.gpu import GpuSettings
from infra.settings.inference import InferenceServiceSettings
from infra.settings.jobs.mounts import VolumeSettings
from infra.settings.services.rollout import CanarySettings
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training import DECIDED_BY_STACK, TrainingJobSettings
from infra.settings.volcano import VolcanoSettings
from infra.settings_reference import default_of, value_of
from training.config import TrainingConfig

FILE: Final = Path(__file__).with_name("arguments.py")

_IMAGE: Final = ("image", "str", "image of the pods, pinned by digest (`…@sha256:…`)")
_PLACE: Final = (
    (
        "platform",
        "str | None",
        "stack of this project, such as `organization/gpu-platform/prod`, from which namespace, "
        "claims and GPU nodes are taken where they are not written here",
    ),
    ("namespace", "str | None", "namespace of the pods; needed without `platform`"),
    (
        "claims",
        "dict[str, Input[str]] | None",
        "claims by logical name: their names in the cluster; needed without `platform`",
    ),
    (
        "gpu_nodes",
        "GpuNodes | None",
        "how pods get GPUs; without it and `platform`, as `nvidia.com/gpu` on any node",
    ),
    ("service_account", "str | None", "service account of the pods"),
)

COMPONENTS: Final[Mapping[str, tuple[type[BaseModel], tuple[tuple[str, str, str], ...]]]] = {
    "TrainingJobInputs": (TrainingJobSettings, (_IMAGE, *_PLACE)),
    "InferenceServiceInputs": (
        InferenceServiceSettings,
        (
            _IMAGE,
            ("canary_image", "str | None", "image of the canary, by digest; that of the service"),
            *_PLACE,
            ("domain", "str | None", "DNS domain of the cluster's services; `cluster.local`"),
        ),
    ),
    "GpuStackInputs": (GpuSettings, ()),
    "VolcanoInputs": (VolcanoSettings, ()),
    "TenancyInputs": (
        TenancySettings,
        (("gpu_resource", "str | None", "resource that the quota counts; `nvidia.com/gpu`"),),
    ),
    "StorageInputs": (StorageSettings, (("namespace", "str", "namespace of the claims"),)),
}
"""Name of a component's arguments: the settings in them, and what they have besides."""

LEFT_OUT: Final[Mapping[type[BaseModel], frozenset[str]]] = {
    TrainingJobSettings: frozenset({"image"}),
    TrainingConfig: DECIDED_BY_STACK,
    InferenceServiceSettings: frozenset({"image", "job"}),
    CanarySettings: frozenset({"image"}),
}
"""What the stack decides, or what a plugin's arguments say in another way."""

_NAMES: Final[Mapping[type[BaseModel], str]] = {
    TrainingConfig: "Hyperparameters",
    # Storage has volumes as well.
    VolumeSettings: "JobVolume",
}

_HEAD: Final = '''\
"""What programs in any language write: Pulumi makes the plugin's schema from this.

Written by `python -m gpu_platform.plugin.arguments_source` from infra/settings/; edit it there.
"""
# ruff: noqa: E501

from typing import Any, NotRequired, TypedDict

from pulumi import Input


class GpuNodes(TypedDict):
    """How pods get GPUs, as the platform's output `gpuNodes` says it."""

    resource: Input[str]
    """resource that a container asks for, such as nvidia.com/gpu"""
    node_selector: NotRequired[Input[dict[str, Input[str]]]]
    """labels of the nodes that have GPUs"""
    tolerations: NotRequired[Input[list[Input["Toleration"]]]]
    """taints of those nodes"""
    runtime_class: NotRequired[Input[str]]
    """runtime class of pods with GPUs; leave it out where they need none"""
'''


def source() -> str:
    """The whole file, in Python, as ruff formats it."""
    parts: dict[str, str] = {}
    for name, (model, besides) in COMPONENTS.items():
        _collect(name, model, besides, parts)
    toleration = parts.pop("Toleration")
    head, _, nodes = _HEAD.partition("class GpuNodes")
    texts = [f"{head}{toleration}", f"class GpuNodes{nodes}", *parts.values()]
    return "\n\n".join(texts).replace('Input["Toleration"]', "Input[Toleration]")


def name_of(model: type[BaseModel]) -> str:
    """Name of the type in the schema."""
    return _NAMES.get(model, model.__name__.removesuffix("Settings"))


def _collect(
    name: str,
    model: type[BaseModel],
    besides: tuple[tuple[str, str, str], ...],
    parts: dict[str, str],
) -> None:
    fields = {
        key: field
        for key, field in model.model_fields.items()
        if key not in LEFT_OUT.get(model, frozenset())
    }
    for field in fields.values():
        for nested in _models(field.annotation):
            if name_of(nested) not in parts:
                _collect(name_of(nested), nested, (), parts)
    lines = [f"class {name}(TypedDict):", f'    """{model.__doc__ or name}"""', ""]
    for key, annotation, meaning in besides:
        lines += _line(key, annotation.removesuffix(" | None"), meaning, "None" not in annotation)
    for key, field in fields.items():
        lines += _line(key, _kind(field.annotation), _meaning(field), field.is_required())
    parts[name] = "\n".join(lines) + "\n"


def _line(key: str, annotation: str, meaning: str, required: bool) -> list[str]:
    value = f"Input[{annotation}]"
    written = meaning.replace("\\", "\\\\")
    return [
        f"    {key}: {value if required else f'NotRequired[{value}]'}",
        f'    """{written}{" " if written.endswith(chr(34)) else ""}"""',
    ]


def _meaning(field: FieldInfo) -> str:
    default = "" if field.is_required() else f"; default {default_of(field)}"
    said = f"{value_of(field)}{default}".replace(" or null", "").replace("; default `null`", "")
    return f"{field.description or ''} ({said})"


def _kind(annotation: Any) -> str:
    """The annotation in Pulumi's own types."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (Union, types.UnionType):
        kinds = {_kind(part) for part in arguments if part is not types.NoneType}
        return kinds.pop() if len(kinds) == 1 else "Any"
    if origin is Literal:
        return "str"
    if origin in (list, tuple):
        return f"list[Input[{_kind(arguments[0])}]]"
    if origin is dict:
        return f"dict[str, Input[{_kind(arguments[1])}]]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return name_of(annotation)
    if annotation in (str, int, float, bool):
        return str(annotation.__name__)
    return "str" if "Path" in str(annotation) else "Any"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


if __name__ == "__main__":
    FILE.write_text(source())
