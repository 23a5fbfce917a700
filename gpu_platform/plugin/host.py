"""The plugin's process, which serves Pulumi's engine (`pulumi.provider.experimental`)."""

import json
import sys
from typing import Any, Final

import pulumi
from pulumi.output import contains_unknowns
from pulumi.provider import main
from pulumi.provider.experimental.analyzer import ComponentDefinition
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.experimental.schema import generate_schema

from gpu_platform.plugin import schema
from gpu_platform.plugin.components import COMPONENTS

NAME: Final = "gpu-platform"
VERSION: Final = "0.1.0"


class Provider(ComponentProvider):
    """Provider whose arguments are the settings, and may be outputs as a whole.

    Pulumi's base class derives arguments from annotated classes, and maps names in an output of an
    object as if the object were empty. This provider maps names once the values are known.
    """

    def __init__(self) -> None:
        super().__init__(list(COMPONENTS), NAME, version=VERSION)
        arguments, self._type_defs = schema.arguments()
        for name, definition in self._component_defs.items():
            definition.inputs = schema.schema_names(arguments[name])
            definition.inputs_mapping = schema.python_names(arguments[name])
        self._component_defs["GpuStack"].outputs["gpuNodes"] = schema.GPU_NODES
        package = generate_schema(NAME, VERSION, None, self._component_defs, self._type_defs, [])
        self.schema = json.dumps(package.to_json())

    def map_inputs(self, inputs: Any, component_def: ComponentDefinition) -> Any:
        """Return an output of the arguments by their names in Python."""
        mapped = super().map_inputs
        given = pulumi.Output.from_input(inputs)

        def map_known(values: Any) -> Any:
            if contains_unknowns(values):
                _warn_unknown(component_def.name, values)
                return given  # an unknown output
            return mapped(values, component_def)

        return given.apply(map_known, run_with_unknowns=True)


def _warn_unknown(component: str, values: Any) -> None:
    """Warn that a preview does not show the component's resources."""
    named = values.items() if isinstance(values, dict) else ()
    unknown = [key for key, value in named if contains_unknowns(value)]
    pulumi.log.warn(
        f"The preview does not show the resources of this {component}: "
        f"{', '.join(sorted(unknown)) or 'an argument'} is unknown until the update."
    )


def serve() -> None:
    """Serve the engine whose address is the first argument until it disconnects."""
    main(Provider(), sys.argv[1:])
