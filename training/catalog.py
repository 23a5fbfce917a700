"""Which models and data sets there are, and which of them fit together. Imports no torch."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

DatasetName = Literal[
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards", "text", "tokens",
]  # fmt: skip
TEXTS: Final[tuple[DatasetName, ...]] = ("text", "tokens")
IMAGES: Final[tuple[DatasetName, ...]] = (
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards",
)  # fmt: skip

Option = int | float | str | bool
"""What a model can be told."""

FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A model of the user's: a module that can be imported, a colon, and a function or class."""


class Options(BaseModel):
    """What can be said about a model beside its name: nothing, where there is one size only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def input_shape(self) -> tuple[int, ...]:
        """Of one sample, for models whose options decide it."""
        raise NotImplementedError


class ResNetOptions(Options):
    """Of resnet18 and resnet50."""

    image_size: int = Field(
        default=224, ge=32, le=1024, description="height and width of the images"
    )

    def input_shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return (3, self.image_size, self.image_size)


class GptOptions(Options):
    """Of gpt."""

    context: int = Field(default=256, ge=8, le=131_072, description="tokens that it sees at once")
    layers: int = Field(default=4, ge=1, le=128)
    heads: int = Field(default=4, ge=1, le=128)
    width: int = Field(
        default=128, ge=8, le=16_384, description="of a token's vector, all heads together"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "GptOptions":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} cannot be shared by {self.heads} heads: "
                "write a multiple of twice the heads"
            )
        return self

    def input_shape(self) -> tuple[int, ...]:
        """Tokens."""
        return (self.context,)


@dataclass(frozen=True)
class KnownModel:
    """A network of this project: the shape of one sample (None: its options decide)."""

    takes: str
    datasets: tuple[DatasetName, ...]
    shape: tuple[int, ...] | None = None
    options: type[Options] = Options


MODELS: Final = {
    "digits-net": KnownModel("1x8x8", ("digits", "synthetic"), (1, 8, 8)),
    "mnist-net": KnownModel(
        "1x28x28", ("digits", "glyphs", "mnist", "fashion-mnist", "synthetic"), (1, 28, 28)
    ),
    "simple-cnn": KnownModel("3x32x32", IMAGES, (3, 32, 32)),
    "resnet18": KnownModel("3x224x224 or another image_size", IMAGES, options=ResNetOptions),
    "resnet50": KnownModel("the same", IMAGES, options=ResNetOptions),
    "gpt": KnownModel("text", TEXTS, options=GptOptions),
}
"""Images can be enlarged and grey turned into colour, but nothing is shrunk."""


def _is_model_name(name: str) -> str:
    if name not in MODELS and not FACTORY.fullmatch(name):
        raise ValueError(f"write {', '.join(MODELS)}, or your own as package.module:factory")
    return name


ModelName = Annotated[str, AfterValidator(_is_model_name)]


def checked_options(model: str, options: dict[str, Option]) -> dict[str, Any]:
    """All options of a model, defaults as well. Raises pydantic.ValidationError.

    Those of a user's own factory are its own affair and come back as they are.
    """
    known = MODELS.get(model)
    return dict(options) if known is None else known.options.model_validate(options).model_dump()


def input_shape(model: str, options: dict[str, Option]) -> tuple[int, ...] | None:
    """Of one sample: channels, height, width of an image, or the tokens of a text.

    None for a user's own model, which takes the samples as they are.
    """
    known = MODELS.get(model)
    if known is None or known.shape is not None:
        return known.shape if known else None
    return known.options.model_validate(options).input_shape()
