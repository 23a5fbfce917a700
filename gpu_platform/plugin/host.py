"""The plugin's process: it answers Pulumi's engine (`pulumi.provider.experimental`)."""

import sys
from typing import Any, Final

import pulumi
from pulumi.output import contains_unknowns
from pulumi.provider import main
from pulumi.provider.experimental.analyzer import ComponentDefinition
from pulumi.provider.experimental.component import ComponentProvider

from gpu_platform.plugin.components import COMPONENTS

NAME: Final = "gpu-platform"
VERSION: Final = "0.1.0"


class Provider(ComponentProvider):
    """Pulumi's own provider of components, but for arguments that are outputs as a whole.

    Its mapping of names looks into values, and takes the output of an object for an empty one; so
    here names are mapped when the values are there.
    """

    def map_inputs(self, inputs: Any, component_def: ComponentDefinition) -> Any:
        """An output of the arguments, under their names in Python."""
        mapped = super().map_inputs
        given = pulumi.Output.from_input(inputs)

        def map_known(values: Any) -> Any:
            if contains_unknowns(values):
                _tell_unknown(component_def.name, values)
                return given  # which is unknown
            return mapped(values, component_def)

        return given.apply(map_known, run_with_unknowns=True)


def _tell_unknown(component: str, values: Any) -> None:
    """Without this a preview would leave the component's content out in silence."""
    named = values.items() if isinstance(values, dict) else ()
    unknown = [key for key, value in named if contains_unknowns(value)]
    pulumi.log.warn(
        f"What is in this {component} is shown after the preview: "
        f"{', '.join(sorted(unknown)) or 'an argument'} cannot be known before the update."
    )


def provider() -> Provider:
    """The provider with all components."""
    return Provider(list(COMPONENTS), NAME, version=VERSION)


def serve() -> None:
    """Answer the engine whose address is the first argument, until it has no more questions."""
    main(provider(), sys.argv[1:])
