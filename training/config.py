"""What a training run can be told, and whether it makes sense.

Imports no torch: the stack validates a job's hyperparameters with this very class in the preview.
"""

import json
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from workload.catalog import MODELS, ModelName, Option, checked_options
from workload.configuration import DeviceName, problem_sentences

DatasetName = Literal[
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards", "text", "tokens",
]  # fmt: skip
TEXTS: Final[tuple[DatasetName, ...]] = ("text", "tokens")
IMAGES: Final[tuple[DatasetName, ...]] = (
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards",
)  # fmt: skip
DATASETS: Final[dict[str, tuple[DatasetName, ...]]] = {
    "digits-net": ("digits", "synthetic"),
    "mnist-net": ("digits", "glyphs", "mnist", "fashion-mnist", "synthetic"),
    "gpt": TEXTS,
}
"""Data sets that a model can be trained on; models that are not listed take all images."""

ExportFormat = Literal["pt2"]

PositiveInt = Annotated[int, Field(ge=1)]

ALWAYS_DECISIVE: Final = (
    "model", "dataset", "epochs", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip
DECISIVE_WHERE_SET: Final = (
    "model_options", "optimizer", "schedule", "warm_up", "accumulate", "clip_norm", "precision",
    "gradient_compression",
)  # fmt: skip
"""Came later: named only where they differ from their defaults, so older runs stay the same."""


class TrainingConfig(BaseModel):
    """One training run. Field names are the flags' names with underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: ModelName = Field(
        default="simple-cnn",
        description="network to train, with what it takes (images are enlarged to it): "
        + "; ".join(f"{name} {known.takes}" for name, known in MODELS.items())
        + "; or your own as package.module:factory",
    )
    model_options: dict[str, Option] = Field(
        default_factory=dict,
        description='what the network can be told, as JSON: \'{"layers": 6, "context": 512}\' of '
        "gpt (also heads, width, dropout), image_size of the resnets, anything of your own",
    )
    dataset: DatasetName = Field(
        default="digits",
        description="digits, glyphs and photos come with packages, synthetic is made from the "
        "seed, all others are read from data_dir",
    )
    data_dir: PurePosixPath = Field(
        default=PurePosixPath("/data"),
        description="folder of data sets, never written but by download",
    )
    download: bool = Field(
        default=False,
        description="fetch mnist, fashion-mnist, cifar10 or cifar100 into data_dir first",
    )
    loader_workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="processes that read data ahead for each training process",
    )
    run_dir: PurePosixPath = Field(
        default=PurePosixPath("/checkpoints/run"),
        description="folder of this run on storage that all processes share: "
        "checkpoints/ and export/ are written here and resumed from",
    )
    epochs: PositiveInt = Field(default=10, description="passes over the training data")
    batch_size: PositiveInt = Field(
        default=64, description="samples per process that are computed at once"
    )
    accumulate: PositiveInt = Field(
        default=1, description="batches per process whose gradients make one step"
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="sgd has Nesterov momentum 0.9"
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, le=10, allow_inf_nan=False, description="peak of the schedule"
    )
    schedule: Literal["one-cycle", "linear", "constant"] = Field(
        default="one-cycle",
        description="of the learning rate after the warm-up: down on a cosine, down in a "
        "straight line, or not at all",
    )
    warm_up: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="share of the run in which the learning rate rises to its peak",
    )
    weight_decay: float = Field(
        default=1e-4, ge=0, le=1, allow_inf_nan=False, description="decoupled with adamw"
    )
    clip_norm: float = Field(
        default=0,
        ge=0,
        allow_inf_nan=False,
        description="gradients whose norm, all together, is larger are scaled down to it; 0 is off",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**31, description="of weights, dropout, order and synthetic data"
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="ddp keeps the whole model in every process, fsdp (FSDP2) a part in each",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="of the computation by autocast; weights stay fp32, fp16 scales the loss",
    )
    compile: bool = Field(
        default=False, description="torch.compile the model: slower start, faster steps"
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="compute blocks again instead of keeping their activations: less memory",
    )
    gradient_compression: Literal["none", "bf16", "fp16"] = Field(
        default="none", description="of what the processes send one another (ddp only)"
    )
    checkpoint_every: PositiveInt = Field(default=1, description="epochs between two checkpoints")
    checkpoint_steps: int = Field(
        default=0, ge=0, description="steps between two checkpoints inside an epoch; 0 is none"
    )
    checkpoint_async: bool = Field(
        default=True,
        description="write checkpoints while training goes on; only a copy makes it wait",
    )
    keep_checkpoints: PositiveInt = Field(
        default=3, description="newest checkpoints that are kept; older ones are removed"
    )
    keep_best: bool = Field(
        default=True,
        description="keep the checkpoint of the epoch with the least held-out loss as well",
    )
    log_every: int = Field(
        default=0, ge=0, description="steps between two progress lines; 0 writes one line an epoch"
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="port at which the first process of every node answers Prometheus; "
        "0 is no port",
    )
    device: DeviceName = Field(default="auto", description="auto takes a GPU where there is one")
    peer_timeout: float = Field(
        default=60,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds to wait for another process before giving up; "
        "must exceed the time that saving a checkpoint takes",
    )
    hang_timeout: float = Field(
        default=1800,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds without a step, a batch of the evaluation, a checkpoint or another "
        "part of the run after which a process shows its stacks and ends with 76; 0 is for ever; "
        "unless it is written, a longer peer_timeout takes its place",
    )
    tensorboard: bool = Field(
        default=False, description="write event files for TensorBoard to run_dir/tensorboard"
    )
    profile_steps: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="steps whose profile goes to run_dir/profile; 0 is none",
    )
    profile_after: int = Field(
        default=10, ge=0, description="steps of this process before the profile begins"
    )
    export_formats: tuple[ExportFormat, ...] = Field(
        default=(),
        description="Programs that are exported with the weights: pt2 (torch.export).",
    )
    prune: float = Field(
        default=0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="share of the smallest weights that a second export does without",
    )
    quantize: Literal["none", "static", "dynamic", "weight-only"] = Field(
        default="none",
        description="second export with whole numbers of 8 bits: static for networks of "
        "convolutions, dynamic or weight-only for those of linear layers",
    )
    step_delay: float = Field(
        default=0,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="seconds slept after each step: makes an interruption visible on tiny data, "
        "for demonstrations only",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object, info: ValidationInfo) -> object:
        """YAML's `epochs: yes` is a mistake and not 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("a truth value cannot be used here")
        return value

    @field_validator("model_options", mode="before")
    @classmethod
    def _from_json(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError('write a JSON object, such as {"layers": 6}') from None

    @field_validator("export_formats", mode="before")
    @classmethod
    def _from_list(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

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
    def _options_fit_model(self) -> Self:
        try:
            checked_options(self.model, self.model_options)
        except ValidationError as error:
            raise ValueError(
                f"model_options of {self.model}: " + "; ".join(problem_sentences(error))
            ) from None
        return self

    @model_validator(mode="after")
    def _dataset_fits_model(self) -> Self:
        datasets = DATASETS.get(self.model, IMAGES)
        if self.model not in MODELS or self.dataset in datasets:
            return self
        reason = "takes other data than"
        if self.dataset in IMAGES and datasets != TEXTS:
            reason = "takes smaller images than"
        raise ValueError(
            f"model {self.model!r} {reason} dataset {self.dataset!r} has: "
            f"with this model write dataset {' or '.join(datasets)}"
        )

    @model_validator(mode="after")
    def _parallel_fits(self) -> Self:
        if self.parallel == "fsdp" and self.gradient_compression != "none":
            raise ValueError(
                f"gradient_compression {self.gradient_compression} is of ddp: with fsdp write none "
                "(precision bf16 makes fsdp send half as much)"
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
        fields = type(self).model_fields
        names = [
            *ALWAYS_DECISIVE,
            *(
                name
                for name in DECISIVE_WHERE_SET
                if getattr(self, name) != fields[name].get_default(call_default_factory=True)
            ),
        ]
        return {name: written(getattr(self, name)) for name in names}

    def to_args(self) -> list[str]:
        """Flags for `python -m training` that give this configuration again.

        Only fields that were set are written, so that a new default or a new field does not
        change the arguments (and with them the name) of runs that exist.
        """
        return [
            f"{flag_of(name)}={written(getattr(self, name))}"
            for name in type(self).model_fields
            if name in self.model_fields_set
        ]


def flag_of(field: str) -> str:
    """`batch_size` → `--batch-size`."""
    return "--" + field.replace("_", "-")


def written(value: Any) -> str | int | float:
    """A field's value as it is written on a command line, numbers as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, tuple):
        return ",".join(value)
    return value if isinstance(value, int | float) else str(value)
