"""Plugin process, which serves Pulumi's engine (`pulumi.provider.experimental`)."""

import asyncio
import json
import os
import socket
import sys
import time
from threading import Thread
from typing import Any, Final

import pulumi
from pulumi.errors import InputPropertiesError
from pulumi.output import contains_unknowns
from pulumi.provider import main
from pulumi.provider.experimental.analyzer import ComponentDefinition
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.experimental.schema import generate_schema

from gpu_platform.plugin import schema
from gpu_platform.plugin.components import COMPONENTS

NAME: Final = "gpu-platform"
VERSION: Final = "0.1.0"
_POLL_SECONDS: Final = 5.0
_METADATA: Final = {
    "description": "PyTorch on Kubernetes with NVIDIA GPUs, as one Pulumi project: scheduler, "
    "storage, images, training jobs, inference and the policies that check them.",
    "license": "Apache-2.0",
    "repository": "https://github.com/OWNER/REPOSITORY",
    "publisher": "The gpu-platform authors",
}


def definitions() -> dict[str, ComponentDefinition]:
    """Return the definitions of the components by name."""
    return Provider()._component_defs


class Provider(ComponentProvider):
    """Provider that derives the components' arguments from the settings models.

    Pulumi's base class derives arguments from annotated classes. If all arguments arrive as a
    single output, the base class treats the output as an empty object and finds no arguments. This
    provider waits until the values are known, and then maps the names.
    """

    def __init__(self) -> None:
        super().__init__(list(COMPONENTS), NAME, version=VERSION)
        arguments, self._type_defs = schema.arguments()
        for name, definition in self._component_defs.items():
            definition.inputs = schema.schema_names(arguments[name])
            definition.inputs_mapping = schema.python_names(arguments[name])
        for name, outputs in schema.outputs(self._type_defs).items():
            self._component_defs[name].outputs.update(outputs)
        package = generate_schema(NAME, VERSION, None, self._component_defs, self._type_defs, [])
        self.schema = json.dumps({**package.to_json(), **_METADATA})

    def map_inputs(self, inputs: Any, component_def: ComponentDefinition) -> Any:
        """Return an output that contains the arguments under their Python names.

        The output raises InputPropertiesError if an argument contains a secret, because the
        manifests would contain the secret in plain text.
        """
        map_names = super().map_inputs
        output = pulumi.Output.from_input(inputs)

        def map_known(values: Any) -> Any:
            if contains_unknowns(values):
                _warn_unknown(component_def.name, values)
                return output  # still contains the unknown values
            return map_names(values, component_def)

        secret: pulumi.Output[bool] = pulumi.Output.from_input(
            asyncio.ensure_future(output.is_secret())
        )
        return secret.apply(
            lambda is_secret: (
                _reject_secrets(inputs, component_def)
                if is_secret
                else output.apply(map_known, run_with_unknowns=True)
            )
        )


async def _reject_secrets(inputs: Any, component: ComponentDefinition) -> None:
    named = inputs.items() if isinstance(inputs, dict) else ()
    keys = [key for key, value in named if await pulumi.Output.from_input(value).is_secret()]
    remedy = "use a value that is not a secret"
    if "envFrom" in component.inputs:
        remedy = (
            f"create a Kubernetes Secret, and name it in envFrom or volumes; otherwise {remedy}"
        )
    verb = "contain" if len(keys) > 1 else "contains"
    # The error has no details, because Pulumi prints the values of arguments that details name.
    raise InputPropertiesError(
        f"{', '.join(sorted(keys)) or 'an argument'} {verb} a secret, which the stack's state "
        f"would store in plain text: {remedy}",
        [],
    )


def _warn_unknown(component: str, values: Any) -> None:
    """Warn that a preview does not show the component's resources."""
    named = values.items() if isinstance(values, dict) else ()
    unknown = [key for key, value in named if contains_unknowns(value)]
    pulumi.log.warn(
        f"The preview does not show the resources of this {component}: "
        f"{', '.join(sorted(unknown)) or 'an argument'} {'are' if len(unknown) > 1 else 'is'} "
        "unknown until the update."
    )


def serve() -> None:
    """Serve the engine, whose address is the last command-line argument, until it exits."""
    Thread(target=_exit_with_engine, args=[sys.argv[-1]], daemon=True).start()
    main(Provider(), sys.argv[1:])


def _exit_with_engine(address: str) -> None:
    """Exit when the engine no longer listens, because Pulumi does not stop every plugin process."""
    host, _, port = address.rpartition(":")
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            socket.create_connection((host, int(port)), timeout=_POLL_SECONDS).close()
        except ConnectionRefusedError:
            os._exit(0)
        except OSError:
            pass  # for example a timeout on a busy machine
