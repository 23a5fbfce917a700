"""Arguments of the plugin's components: settings, and the platform on which a workload runs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pulumi.provider.experimental.analyzer import (
    EnumValueDefinition,
    PropertyDefinition,
    PropertyType,
    TypeDefinition,
)
from pulumi.provider.experimental.util import camel_case
from pydantic import BaseModel

from gpu_platform.plugin.gpu_nodes import GpuNodesSettings
from infra.outputs import PLATFORM_OUTPUTS
from infra.settings.cluster import GpuSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.monitoring import MonitoringSettings, RecorderSettings
from infra.settings.node_health import NodeHealthSettings
from infra.settings.schema import (
    Field,
    Schema,
    alternatives,
    definition_name,
    fields,
    nested,
    schema_of,
)
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training.job import TrainingJobSettings
from infra.settings.volcano import VolcanoSettings

Properties = dict[str, PropertyDefinition]
_RUN_OUTPUT: Final = "RunOutput"
_SERVICE_OUTPUT: Final = "InferenceOutput"

_OMITTED_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "TrainingJob": frozenset({"image", "schedule"}),
    "InferenceService": frozenset({"image", "job", "sweep"}),
    "Canary": frozenset({"image", "rollback"}),
    "GpuStack": frozenset({"node_health"}),
    "FailureRecorder": frozenset({"image", "claims"}),
    "NodeHealth": frozenset({"image"}),
}
"""For each type, keys that refer to another part of the stack. The plugin omits them: either
another argument contains the referenced value, or the component does not create that part."""


def _string(description: str, *, optional: bool = True) -> PropertyDefinition:
    return PropertyDefinition(optional=optional, type=PropertyType.STRING, description=description)


def _string_map(description: str) -> PropertyDefinition:
    return PropertyDefinition(
        optional=True,
        type=PropertyType.OBJECT,
        additional_properties=_string(description, optional=False),
        description=description,
    )


def _type(name: str, description: str) -> PropertyDefinition:
    return PropertyDefinition(
        optional=True, ref=f"#/types/gpu-platform:index:{name}", description=description
    )


_IMAGE: Final = _string("Image of the pods, pinned by digest (`…@sha256:…`).", optional=False)
_GPU_NODES_TEXT: Final = "GPU resource, node selector, tolerations and RuntimeClass of GPU pods."
_PLACEMENT: Final = {
    "platform": _string(
        "Stack of this project, such as `organization/gpu-platform/prod`. Its outputs provide "
        "the defaults for `namespace`, `claims` and `gpuNodes`."
    ),
    "namespace": _string("Namespace of the pods; required without `platform`."),
    "claims": _string_map(
        "Maps logical names of claims to their names in the cluster; required without `platform`."
    ),
    "gpu_nodes": _type(
        "GpuNodes",
        f"{_GPU_NODES_TEXT} The default without `platform` is `nvidia.com/gpu` on any node.",
    ),
    "service_account": _string("Service account of the pods."),
}
_ISOLATION: Final = PropertyDefinition(
    optional=True,
    type=PropertyType.BOOLEAN,
    description="Create the network policies that an isolated namespace requires (default true).",
)
_POD_ARGUMENTS: Final = {
    "image": _string("Image built from recorder/Dockerfile, pinned by digest.", optional=False),
    "gpu_nodes": _PLACEMENT["gpu_nodes"],
    "isolated": _ISOLATION,
}
COMPONENTS: Final[Mapping[str, tuple[type[BaseModel], Properties]]] = {
    "TrainingJob": (TrainingJobSettings, {"image": _IMAGE, **_PLACEMENT}),
    "InferenceService": (
        InferenceServiceSettings,
        {
            "image": _IMAGE,
            "canary_image": _string(
                "Image of the canary, pinned by digest. The default is the service's image."
            ),
            **_PLACEMENT,
            "domain": _string("DNS domain of the cluster's services, by default `cluster.local`."),
        },
    ),
    "GpuStack": (GpuSettings, {}),
    "Volcano": (VolcanoSettings, {}),
    "Tenancy": (
        TenancySettings,
        {
            "gpu_resource": _string(
                "Name of the GPU resource that the quota limits, by default `nvidia.com/gpu`."
            )
        },
    ),
    "Storage": (
        StorageSettings,
        {"namespace": _string("Namespace of the claims.", optional=False)},
    ),
    "FailureRecorder": (
        RecorderSettings,
        {
            **_POD_ARGUMENTS,
            "namespace": _string("Namespace of the runs and the recorder.", optional=False),
            "claims": PropertyDefinition(
                optional=False,
                type=PropertyType.ARRAY,
                items=_string("Name of a claim.", optional=False),
                description="Names of the runs' claims in the cluster. The claims must be "
                "ReadWriteMany, because runs and the recorder write to them at the same time.",
            ),
        },
    ),
    "NodeHealth": (
        NodeHealthSettings,
        {**_POD_ARGUMENTS, "runs_namespace": _string("Namespace of the runs.", optional=False)},
    ),
    "Monitoring": (
        MonitoringSettings,
        {
            "namespace": _string("Namespace of the workloads.", optional=False),
            "volcano_namespace": _string("Namespace of Volcano, by default `volcano-system`."),
            "gpu_nodes": _PLACEMENT["gpu_nodes"],
            "ports": PropertyDefinition(
                optional=True,
                type=PropertyType.ARRAY,
                items=PropertyDefinition(type=PropertyType.INTEGER, description="Port."),
                description="Metrics ports of the workloads. Network policies allow the namespaces "
                "in `scrapedFrom` to connect to them.",
            ),
            "isolated": _ISOLATION,
        },
    ),
}
"""Settings model of each component, and its additional arguments, keyed by Python name."""


def arguments() -> tuple[dict[str, Properties], dict[str, TypeDefinition]]:
    """Return each component's arguments, keyed by Python name, and the types that they use."""
    types: dict[str, TypeDefinition] = {}
    components = {
        component: additional | _properties(component, schema_of(model), types, schema_of(model))
        for component, (model, additional) in COMPONENTS.items()
    }
    nodes = schema_of(GpuNodesSettings)
    properties = _properties("GpuNodes", nodes, types, nodes)
    types["GpuNodes"] = _definition("GpuNodes", properties, nodes["description"])
    return components, types


def outputs(types: dict[str, TypeDefinition]) -> dict[str, Properties]:
    """Return the object-typed outputs of each component, and add their types to `types`."""
    root = PLATFORM_OUTPUTS.json_schema()
    for name in (_RUN_OUTPUT, _SERVICE_OUTPUT):
        section = root["$defs"][name]
        types[name] = _definition(
            name, _properties(name, section, types, root), section["description"]
        )
    built = {
        "GpuStack": {"gpuNodes": _type("GpuNodes", _GPU_NODES_TEXT)},
        "TrainingJob": {
            "summary": _type(_RUN_OUTPUT, "Summary of the run, to be exported as a stack output.")
        },
        "InferenceService": {
            "summary": _type(
                _SERVICE_OUTPUT, "Summary of the service, to be exported as a stack output."
            )
        },
    }
    return {
        component: {name: replace(field, optional=False) for name, field in properties.items()}
        for component, properties in built.items()
    }


def python_names(properties: Properties) -> dict[str, str]:
    """Map the names in the schema to the names in Python."""
    return {camel_case(name): name for name in properties}


def schema_names(properties: Properties) -> Properties:
    """Return the properties keyed by their names in the schema."""
    return {camel_case(name): definition for name, definition in properties.items()}


def _definition(name: str, properties: Properties, description: str) -> TypeDefinition:
    return TypeDefinition(
        name=name,
        type=PropertyType.OBJECT,
        properties=schema_names(properties),
        properties_mapping=python_names(properties),
        module=__name__,
        python_type=dict,
        description=description,
    )


def _properties(
    owner: str, section: Schema, types: dict[str, TypeDefinition], root: Schema
) -> Properties:
    """Return the properties of a section, and add the types that they use to `types`."""
    built = {}
    for field in fields(section):
        if field.name in _OMITTED_FIELDS.get(owner, ()):
            continue
        for _, definition in nested(field.schema):
            if (name := _type_name(definition, owner)) not in types:
                inner = root["$defs"][definition]
                properties = _properties(name, inner, types, root)
                types[name] = _definition(name, properties, inner["description"])
        property_ = _enum(field, owner, types) or _property(
            field.schema, _description(field), owner
        )
        built[field.name] = replace(property_, optional=not field.required)
    return built


def _enum(field: Field, owner: str, types: dict[str, TypeDefinition]) -> PropertyDefinition | None:
    """Return the property of an enum and add its type to `types`; return None for other types."""
    non_null = [each for each in alternatives(field.schema) if each.get("type") != "null"]
    values = non_null[0].get("enum") if len(non_null) == 1 else None
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    name = owner + "".join(part.capitalize() for part in field.name.split("_"))
    types[name] = TypeDefinition(
        name=name,
        type=PropertyType.STRING,
        properties={},
        properties_mapping={},
        module=__name__,
        python_type=str,
        description=field.description,
        enum=[EnumValueDefinition(name=_identifier(value), value=value) for value in values],
    )
    return _type(name, _description(field))


def _identifier(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+", word))


def _type_name(definition: str, owner: str) -> str:
    if definition == "TrainingConfig":
        return "Hyperparameters"
    name = definition.removesuffix("Settings")
    # Two settings classes have the name `VolumeSettings`.
    return "JobVolume" if name == "Volume" and owner != "Storage" else name


def _property(schema: Schema, description: str, owner: str) -> PropertyDefinition:
    non_null = [each for each in alternatives(schema) if each.get("type") != "null"]
    if len(non_null) != 1 or not non_null[0]:
        return PropertyDefinition(ref="pulumi.json#/Any", description=description)
    (schema,) = non_null
    if "$ref" in schema:
        return _type(_type_name(definition_name(schema), owner), description)
    kind, values = schema["type"], schema.get("additionalProperties")
    inner = schema["items"] if kind == "array" else values if isinstance(values, dict) else {}
    return PropertyDefinition(
        # In YAML, a quantity may also be a number.
        type=PropertyType("string" if isinstance(kind, list) else kind),
        description=description,
        items=_property(inner, description, owner) if kind == "array" else None,
        additional_properties=_property(inner, description, owner) if kind == "object" else None,
    )


def _description(field: Field) -> str:
    optional = not field.required and "default" in field.schema
    default = f"; default {field.default}" if optional else ""
    value = f"{field.kind}{default}".replace(" or null", "").replace("; default `null`", "")
    return f"{field.description} ({value})"
