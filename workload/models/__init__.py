"""Construction of this project's models and of custom models (`package.module:factory`)."""

import importlib
import inspect

from pydantic import ValidationError
from torch import nn

from workload.catalog import MODELS, Option, checked_options, input_shape
from workload.configuration import ConfigurationError, problem_sentences
from workload.custom import find


def build(name: str, options: dict[str, Option], outputs: int, shape: tuple[int, ...]) -> nn.Module:
    """Build a new model that maps inputs (N x `shape`) to logits (N x `outputs`).

    A text model returns N x T x `outputs`. Raise ConfigurationError if an option is invalid, if
    a model of this project does not take this shape, or if a custom factory cannot be found or
    called.
    """
    if ":" in name:
        return _build_custom_model(name, options, outputs, shape)
    if name not in MODELS:
        raise ConfigurationError(
            f"unknown model {name}: use {', '.join(MODELS)}, or a custom model as "
            "package.module:factory"
        )
    try:
        checked = checked_options(name, options)
    except ValidationError as error:
        raise ConfigurationError(
            f"model_options of {name}: {'; '.join(problem_sentences(error))}"
        ) from None
    if shape != (takes := input_shape(name, options)):
        raise ConfigurationError(f"model {name} takes inputs of shape {takes}, not {tuple(shape)}")
    module_name, _, attribute = MODELS[name].factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError(
            f"model {name} needs the torchvision release for this PyTorch release: {error}"
        ) from error
    model: nn.Module = getattr(module, attribute)(outputs, **checked)
    return model


def _build_custom_model(
    name: str, options: dict[str, Option], outputs: int, shape: tuple[int, ...]
) -> nn.Module:
    """Call the factory as `factory(outputs=…, input_shape=…, **options)`."""
    factory = find(f"model {name}", name)
    arguments = {"outputs": outputs, "input_shape": shape}
    if reserved := arguments.keys() & options.keys():
        raise ConfigurationError(
            f"model_options of {name} must not contain {', '.join(sorted(reserved))}, which the "
            "data set determines"
        )
    given = ", ".join([*arguments, *options])
    try:
        inspect.signature(factory).bind(**arguments, **options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"model {name} cannot be called with {given}: {error} "
            "(it must accept outputs, input_shape and all model_options as keyword arguments)"
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
            f"model {name} returned {type(model).__name__}: it must return a torch.nn.Module"
        )
    return model
