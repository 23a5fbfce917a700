"""What a training run can be told, and how: flags, environment variables, or a dict.

Imports no torch: the stack validates a job's hyperparameters with this very class in the preview.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, NoReturn, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

ENVIRONMENT_PREFIX: Final = "TRAINING_"

ModelName = Literal["digits-net", "mnist-net", "simple-cnn"]
DatasetName = Literal["digits", "mnist", "cifar10", "synthetic"]
DeviceName = Literal["auto", "cpu", "cuda"]

PositiveInt = Annotated[int, Field(ge=1)]

FITTING_DATASETS: Final[dict[ModelName, tuple[DatasetName, ...]]] = {
    "digits-net": ("digits", "synthetic"),
    "mnist-net": ("digits", "mnist", "synthetic"),
    "simple-cnn": ("digits", "mnist", "cifar10", "synthetic"),
}
"""Images can be enlarged and grey turned into colour, but nothing is shrunk."""

# fmt: off
DECISIVE: Final = (
    "model", "dataset", "epochs", "batch_size", "learning_rate", "weight_decay", "seed",
)
# fmt: on


class ConfigurationError(Exception):
    """The run cannot start as it is described; the message says what to write instead."""


class TrainingConfig(BaseModel):
    """One training run. Field names are the flags' names with underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: ModelName = Field(
        "simple-cnn",
        description="network to train; images are enlarged to its input: "
        "digits-net 1x8x8, mnist-net 1x28x28, simple-cnn 3x32x32",
    )
    dataset: DatasetName = Field(
        "digits",
        description="digits comes with scikit-learn, synthetic is made from the seed, "
        "mnist (IDX files) and cifar10 (binary files) are read from data_dir",
    )
    data_dir: PurePosixPath = Field(
        PurePosixPath("/data"), description="folder of data sets, never written"
    )
    run_dir: PurePosixPath = Field(
        PurePosixPath("/checkpoints/run"),
        description="folder of this run on storage that all processes share: "
        "checkpoints/ and export/ are written here and resumed from",
    )
    epochs: PositiveInt = Field(10, description="passes over the training data")
    batch_size: PositiveInt = Field(64, description="samples per process and step")
    learning_rate: float = Field(
        1e-3, gt=0, le=10, allow_inf_nan=False, description="peak of the one-cycle schedule (AdamW)"
    )
    weight_decay: float = Field(
        1e-4, ge=0, le=1, allow_inf_nan=False, description="decoupled weight decay (AdamW)"
    )
    seed: int = Field(
        0, ge=0, lt=2**31, description="of weights, dropout, order and synthetic data"
    )
    checkpoint_every: PositiveInt = Field(1, description="epochs between two checkpoints")
    keep_checkpoints: PositiveInt = Field(
        3, description="newest checkpoints that are kept; older ones are removed"
    )
    log_every: int = Field(
        0, ge=0, description="steps between two progress lines; 0 writes one line an epoch"
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="port at which the first process of every node answers Prometheus; "
        "0 is no port",
    )
    device: DeviceName = Field("auto", description="auto takes a GPU where there is one")
    peer_timeout: float = Field(
        60,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds to wait for another process before giving up; "
        "must exceed the time that saving a checkpoint takes",
    )
    hang_timeout: float = Field(
        1800,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds without a step, a batch of the evaluation, a checkpoint or another "
        "part of the run after which a process shows its stacks and ends with 76; 0 is for ever; "
        "unless it is written, a longer peer_timeout takes its place",
    )
    step_delay: float = Field(
        0,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="seconds slept after each step: makes an interruption visible on tiny data, "
        "for demonstrations only",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object) -> object:
        """YAML's `epochs: yes` is a mistake and not 1."""
        if isinstance(value, bool):
            raise ValueError("a truth value cannot be used here")
        return value

    @field_validator("run_dir", "data_dir")
    @classmethod
    def _absolute(cls, value: PurePosixPath) -> PurePosixPath:
        if not value.is_absolute() or ".." in value.parts:
            raise ValueError("write an absolute path without '..', such as /checkpoints/my-run")
        return value

    @model_validator(mode="after")
    def _delays_are_no_hangs(self) -> Self:
        if 0 < self.hang_timeout <= self.step_delay:
            raise ValueError(
                f"hang_timeout {self.hang_timeout:g} is not above step_delay {self.step_delay:g}: "
                "every step would be taken for a hang, so write more, or 0"
            )
        return self

    @model_validator(mode="after")
    def _dataset_fits_model(self) -> Self:
        fitting = FITTING_DATASETS[self.model]
        if self.dataset not in fitting:
            raise ValueError(
                f"model {self.model!r} takes smaller images than dataset {self.dataset!r} has: "
                f"with this model write dataset {' or '.join(fitting)}"
            )
        return self

    @property
    def hang_limit(self) -> float:
        """Seconds without progress that are a hang.

        Who raised `peer_timeout` has checkpoints or steps that take this long, and need not know
        that there is a default for hangs.
        """
        if "hang_timeout" in self.model_fields_set:
            return self.hang_timeout
        return max(self.hang_timeout, self.peer_timeout)

    def decisive(self) -> dict[str, str | int | float]:
        """The settings that decide the result; the rest is about where and how it is made."""
        return {name: getattr(self, name) for name in DECISIVE}

    def to_args(self) -> list[str]:
        """Flags for `python -m training` that give this configuration again.

        Only fields that were set are written, so that a new default or a new field does not
        change the arguments (and with them the name) of runs that exist.
        """
        return [
            f"{flag_of(name)}={getattr(self, name)}"
            for name in type(self).model_fields
            if name in self.model_fields_set
        ]


def flag_of(field: str) -> str:
    """`batch_size` → `--batch-size`."""
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """`batch_size` → `TRAINING_BATCH_SIZE`."""
    return ENVIRONMENT_PREFIX + field.upper()


def read_config(arguments: Sequence[str], environment: Mapping[str, str]) -> TrainingConfig:
    """Read a run's configuration; a flag wins over its environment variable.

    Raises ConfigurationError that lists every mistake, each under the name it was written with.
    """
    flags = vars(_parser().parse_args(arguments))
    values: dict[str, str] = {}
    written_as: dict[str, str] = {}
    for name in TrainingConfig.model_fields:
        if flags[name] is not None:
            values[name], written_as[name] = flags[name], flag_of(name)
        elif variable_of(name) in environment:
            values[name], written_as[name] = environment[variable_of(name)], variable_of(name)
    try:
        return TrainingConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("; ".join(plain_errors(error, written_as))) from None


def plain_errors(error: ValidationError, written_as: Mapping[str, str]) -> list[str]:
    """One plain sentence for each mistake, under the name that the user wrote."""
    return [_plain(detail, written_as) for detail in error.errors(include_url=False)]


def _plain(detail: ErrorDetails, written_as: Mapping[str, str]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    name = ".".join(str(part) for part in detail["loc"])
    name = written_as.get(name, name)
    if detail["type"] == "extra_forbidden":
        return f"{name} is not known here"
    if detail["type"] == "missing":
        return f"{name} is missing"
    return f"{name} is {detail['input']!r}: {message[0].lower()}{message[1:]}"


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting with a code of its own."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message} (python -m training --help lists what there is)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m training",
        description="Train a PyTorch model, alone or as a gang of processes under torchrun.",
        epilog="Every flag can be given as an environment variable instead: --batch-size is "
        f"{variable_of('batch_size')}. A run that was interrupted continues from its last "
        "checkpoint when it is started again with the same run_dir. Exit codes: 0 done, 64 wrong "
        "configuration or data (do not retry), 75 interrupted after saving (retry), 76 hung "
        "(retry), others are failures.",
        allow_abbrev=False,
    )
    for name, field in TrainingConfig.model_fields.items():
        parser.add_argument(
            flag_of(name),
            dest=name,
            metavar=_metavar(field.annotation),
            help=f"{field.description} (default: {field.default})",
        )
    return parser


def _metavar(annotation: Any) -> str:
    choices = get_args(annotation)
    if choices:
        return "{" + ",".join(choices) + "}"
    return {int: "N", float: "X", PurePosixPath: "DIR"}[annotation]
