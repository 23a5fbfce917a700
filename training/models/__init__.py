"""The networks, by name, and any of the user's own."""

from typing import Final

from torch import nn

from training.catalog import MODELS as KNOWN
from training.catalog import Option
from training.config import ConfigurationError
from training.models.classifiers import DigitsNet, ImageClassifier, MnistNet, SimpleCNN

__all__ = ["MODELS", "ImageClassifier", "MnistNet", "SimpleCNN", "build"]

MODELS: Final[dict[str, type[ImageClassifier]]] = {
    "digits-net": DigitsNet,
    "mnist-net": MnistNet,
    "simple-cnn": SimpleCNN,
}
"""The networks of one size, which need to know nothing but the number of classes."""


def build(name: str, options: dict[str, Option], outputs: int, shape: tuple[int, ...]) -> nn.Module:
    """A network with new weights: inputs N x `shape` to logits N x `outputs`, or N x T x `outputs`.

    Raises ConfigurationError when a user's own factory cannot be found or called.
    """
    if name in MODELS:
        return MODELS[name](outputs)
    raise ConfigurationError(f"model {name} cannot be built yet: write {', '.join(KNOWN)}")
