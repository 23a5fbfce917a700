"""Models of this project and their options. This module does not import torch."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from workload import custom


def _validate_option(value: object) -> object:
    # Without this check, Pydantic would report an error for each type of the union.
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, int | float | str) or not is_finite:
        raise ValueError("must be a finite number, a string or a boolean")
    return value


Option = Annotated[int | float | str | bool, BeforeValidator(_validate_option)]
"""Value of a model option."""


class Options(BaseModel):
    """Base class of model options. Models without options use this class itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample, for models whose options determine it."""
        raise NotImplementedError


class ResNetOptions(Options):
    """Options of resnet18 and resnet50."""

    image_size: int = Field(
        default=224, ge=32, le=1024, description="Height and width of the images in pixels."
    )

    def input_shape(self) -> tuple[int, ...]:
        """Return channels, height and width."""
        return (3, self.image_size, self.image_size)


class GptOptions(Options):
    """Options of gpt."""

    context: int = Field(
        default=256, ge=8, le=131_072, description="Maximum number of tokens per sample."
    )
    layers: int = Field(default=4, ge=1, le=128, description="Number of blocks.")
    heads: int = Field(default=4, ge=1, le=128, description="Attention heads per block.")
    width: int = Field(
        default=128, ge=8, le=16_384, description="Embedding width, shared by all heads."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout probability.")

    @model_validator(mode="after")
    def _check_width(self) -> "GptOptions":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} cannot be divided among {self.heads} heads: "
                "use a multiple of twice the number of heads"
            )
        return self

    def input_shape(self) -> tuple[int, ...]:
        """Return the number of tokens."""
        return (self.context,)


@dataclass(frozen=True)
class KnownModel:
    """A model of this project: its factory and the shape of one sample.

    `factory` is called with the number of outputs and the options. `input_description` appears in
    help texts. `shape` is None if the options determine the shape.
    """

    factory: str
    input_description: str
    shape: tuple[int, ...] | None = None
    options: type[Options] = Options


MODELS: Final = {
    "digits-net": KnownModel("workload.models.classifiers:DigitsNet", "1x8x8", (1, 8, 8)),
    "mnist-net": KnownModel("workload.models.classifiers:MnistNet", "1x28x28", (1, 28, 28)),
    "simple-cnn": KnownModel("workload.models.classifiers:SimpleCNN", "3x32x32", (3, 32, 32)),
    "resnet18": KnownModel(
        "workload.models.resnet:resnet18",
        "3x224x224 or another image_size",
        options=ResNetOptions,
    ),
    "resnet50": KnownModel(
        "workload.models.resnet:resnet50",
        "3x224x224 or another image_size",
        options=ResNetOptions,
    ),
    "gpt": KnownModel("workload.models.gpt:Gpt", "text", options=GptOptions),
}
"""Models by name.

To fit a model's input shape, images are enlarged by an integer factor, padded with black, and
converted from grayscale to RGB. They are never shrunk.
"""


def _validate_model_name(name: str) -> str:
    if name not in MODELS and not custom.NAME_PATTERN.fullmatch(name):
        raise ValueError(f"use {', '.join(MODELS)}, or a custom model as package.module:factory")
    return name


ModelName = Annotated[str, AfterValidator(_validate_model_name)]


def checked_options(model: str, options: dict[str, Option]) -> dict[str, Any]:
    """Return all options of a model, including defaults.

    Options of a custom model are returned unchanged. Raise pydantic.ValidationError if an option is
    invalid.
    """
    known = MODELS.get(model)
    return dict(options) if known is None else known.options.model_validate(options).model_dump()


def equal_options(model: str, one: dict[str, Option], other: dict[str, Option]) -> bool:
    """Return whether the options describe the same model; omitted options have their defaults.

    Options that are not valid, such as those of an earlier version, are compared as written.
    """
    try:
        return checked_options(model, one) == checked_options(model, other)
    except ValidationError:
        return one == other


def input_shape(model: str, options: dict[str, Option]) -> tuple[int, ...] | None:
    """Return the shape of one sample: channels, height and width, or the number of tokens.

    Return None for a custom model, which is built for the shape of the data set's samples.
    """
    known = MODELS.get(model)
    if known is None or known.shape is not None:
        return known.shape if known else None
    return known.options.model_validate(options).input_shape()
