"""The plugin's process: it answers Pulumi's engine (`pulumi.provider.experimental`)."""

import sys
from typing import Any, Final

import pulumi
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
        return pulumi.Output.from_input(inputs).apply(lambda values: mapped(values, component_def))


def provider() -> Provider:
    """The provider with all components."""
    return Provider(list(COMPONENTS), NAME, version=VERSION)


def serve() -> None:
    """Answer the engine whose address is the first argument, until it has no more questions."""
    main(provider(), sys.argv[1:])
