"""The networks, by name, and any of the user's own."""

from typing import Final

from pydantic import ValidationError
from torch import nn

from training.catalog import MODELS as KNOWN
from training.catalog import Option, checked_options, input_shape
from training.config import ConfigurationError, plain_errors
from training.models.classifiers import DigitsNet, ImageClassifier, MnistNet, SimpleCNN
from training.models.gpt import Gpt
from training.models.own import own_model
from training.models.structure import blocks, flops_per_sample

__all__ = [
    "MODELS",
    "ImageClassifier",
    "MnistNet",
    "SimpleCNN",
    "blocks",
    "build",
    "flops_per_sample",
]

MODELS: Final[dict[str, type[ImageClassifier]]] = {
    "digits-net": DigitsNet,
    "mnist-net": MnistNet,
    "simple-cnn": SimpleCNN,
}
"""The networks of one size, which need to know nothing but the number of classes."""


def build(name: str, options: dict[str, Option], outputs: int, shape: tuple[int, ...]) -> nn.Module:
    """A network with new weights: inputs N x `shape` to logits N x `outputs`, or N x T x `outputs`.

    Raises ConfigurationError when an option is wrong, when a model of this project does not take
    this shape, and when a user's own factory cannot be found or called.
    """
    if ":" in name:
        return own_model(name, options, outputs, shape)
    if name not in KNOWN:
        raise ConfigurationError(
            f"model {name} is not known: write {', '.join(KNOWN)}, or your own as "
            "package.module:factory"
        )
    try:
        checked = checked_options(name, options)
    except ValidationError as error:
        raise ConfigurationError(
            f"model_options of {name}: {'; '.join(plain_errors(error, {}))}"
        ) from None
    if shape != (takes := input_shape(name, options)):
        raise ConfigurationError(
            f"model {name} takes inputs of {takes}, but these are of {tuple(shape)}"
        )
    match name:
        case "resnet18" | "resnet50":
            return _resnet(name, outputs, **checked)
        case "gpt":
            return Gpt(outputs, **checked)
        case _:
            return MODELS[name](outputs)


def _resnet(name: str, outputs: int, image_size: int) -> nn.Module:
    """Imported only here: no other network needs torchvision, which takes its time."""
    try:
        from training.models import resnet
    except ImportError as error:
        raise ConfigurationError(
            f"model {name} needs the package torchvision, of the version that fits this PyTorch: "
            f"{error}"
        ) from error
    factory = resnet.resnet18 if name == "resnet18" else resnet.resnet50
    network: nn.Module = factory(outputs, image_size)
    return network
