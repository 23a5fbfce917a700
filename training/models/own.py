"""A model of the user's own: `package.module:factory`, called with what it has to fit."""

import importlib
import inspect
from collections.abc import Callable

from torch import nn

from training.catalog import Option
from training.config import ConfigurationError


def own_model(
    name: str, options: dict[str, Option], outputs: int, shape: tuple[int, ...]
) -> nn.Module:
    """Call the factory as `factory(outputs=…, input_shape=…, **options)`.

    Raises ConfigurationError when there is none, when it cannot be called so, or when what it
    gives is no model.
    """
    factory = _find(name)
    arguments = {"outputs": outputs, "input_shape": shape}
    if reserved := arguments.keys() & options.keys():
        raise ConfigurationError(
            f"model_options of {name} name {', '.join(sorted(reserved))}, which the data decide: "
            "leave it out"
        )
    given = ", ".join([*arguments, *options])
    try:
        inspect.signature(factory).bind(**arguments, **options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"model {name} cannot be called with {given}: {error} "
            "(it is given outputs, input_shape and each of model_options by name)"
        ) from None
    try:
        model = factory(**arguments, **options)
    except Exception as error:
        raise ConfigurationError(
            f"model {name} failed with outputs={outputs}, input_shape={shape} and {options}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model {name} gave {type(model).__name__}: it must give a torch.nn.Module"
        )
    return model


def _find(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"model {name} is not there: {error}; its folder must be on PYTHONPATH"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"model {name}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigurationError(
            f"model {name}: {module_name} has no function or class named {attribute}"
        )
    return factory  # type: ignore[no-any-return]
