"""Configuration of a training run and its validation.

Imports no torch: the stack validates a job's hyperparameters with this class in the preview.
"""

import json
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from workload import custom
from workload.catalog import MODELS, ModelName, Option, checked_options
from workload.configuration import DeviceName, problem_sentences
from workload.store import STORES, URL

DatasetName = Literal[
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards", "text", "tokens",
]  # fmt: skip
TEXTS: Final[tuple[DatasetName, ...]] = ("text", "tokens")
IMAGES: Final[tuple[DatasetName, ...]] = (
    "digits", "glyphs", "photos", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards",
)  # fmt: skip
PUBLISHED: Final[tuple[DatasetName, ...]] = ("mnist", "fashion-mnist", "cifar10", "cifar100")
PREPARED: Final[tuple[DatasetName, ...]] = ("shards", "tokens")
"""Data sets of `python -m training.data prepare`, in the directory of data_dir with that name."""
DATASETS: Final[dict[str, tuple[DatasetName, ...]]] = {
    "digits-net": ("digits", "synthetic"),
    "mnist-net": ("digits", "glyphs", "mnist", "fashion-mnist", "synthetic"),
    "gpt": TEXTS,
}
"""Data sets that a model can be trained on; models that are not listed take all images."""

ExportFormat = Literal["pt2"]

CROSS_ENTROPY: Final = "cross-entropy"
REPORTED: Final = ("accuracy", "loss", "held_out_loss", "seconds")
"""Values of an epoch, whose names no custom metric may have."""


def _is_custom(name: str) -> str:
    if not custom.NAME.fullmatch(name):
        raise ValueError("write package.module:function")
    return name


def _is_dataset(name: str) -> str:
    if name not in get_args(DatasetName) and not custom.NAME.fullmatch(name):
        known = ", ".join(get_args(DatasetName))
        raise ValueError(f"write {known}, or a custom data set as package.module:factory")
    return name


def _is_loss(name: str) -> str:
    if name != CROSS_ENTROPY and not custom.NAME.fullmatch(name):
        raise ValueError(f"write {CROSS_ENTROPY}, or a custom function as package.module:function")
    return name


CustomName = Annotated[str, AfterValidator(_is_custom)]
LossName = Annotated[str, AfterValidator(_is_loss)]

Beta = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1, le=2**53)]

TENSORFLOW_FIELDS: Final = frozenset((
    "model", "dataset", "run_dir", "epochs", "batch_size", "learning_rate", "seed",
    "checkpoint_every", "keep_checkpoints", "peer_timeout",
))  # fmt: skip
"""Fields that `examples.tensorflow` reads; it takes `batch_size` per GPU, or for the CPU."""

LENGTHS: Final = ("epochs", "train_steps", "train_samples", "train_tokens")
"""Settings of which one is the length of a run."""

ALWAYS_DECISIVE: Final = (
    "model", "dataset", "epochs", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip
DECISIVE_WHERE_SET: Final = (
    "model_options", "loss", "optimizer", "schedule", "warm_up", "accumulate", "clip_norm",
    "weight_decay_on", "betas", "ema_decay", "precision", "gradient_compression", "init_from",
    "init_sha256", "init_partial", *LENGTHS[1:],
)  # fmt: skip
"""Added later: listed only with other values than the default, so that older runs stay the same."""
FORMER_DEFAULT: Final = ("precision", "fp32")
"""Not listed either, for the same reason."""


class TrainingConfig(BaseModel):
    """Configuration of one training run. Field names are the flags with underscores."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    model: ModelName = Field(
        default="simple-cnn",
        description="Model to train, with its input (images are enlarged to it): "
        + "; ".join(f"{name} {known.takes}" for name, known in MODELS.items())
        + "; or a custom model as package.module:factory.",
    )
    model_options: dict[str, Option] = Field(
        default_factory=dict,
        description='Options of the model as JSON, such as \'{"layers": 6, "context": 512}\' for '
        "gpt (also heads, width, dropout), image_size for the resnets, any for a custom model.",
    )
    init_from: PurePosixPath | None = Field(
        default=None,
        description="Directory of a finished run, of an export, or of a Hugging Face Llama (model "
        "gpt), whose weights a new run starts with. A run that resumes does not read it.",
    )
    init_sha256: str = Field(
        default="",
        pattern="^([0-9a-f]{64})?$",
        description="Required SHA-256 of the weights of init_from: the one in its manifest or, "
        "for a Hugging Face directory, that of its safetensors files.",
    )
    init_partial: bool = Field(
        default=False,
        description="Load the tensors of init_from that fit the model, and report the others; "
        "otherwise all must fit.",
    )
    dataset: Annotated[str, AfterValidator(_is_dataset)] = Field(
        default="digits",
        description="Data set. digits, glyphs and photos are part of packages, synthetic is "
        "generated from the seed; shards, text, tokens and published ones ("
        + ", ".join(PUBLISHED)
        + ") are read from data_dir; or a custom data set as package.module:factory.",
    )
    data_dir: PurePosixPath = Field(
        default=PurePosixPath("/data"),
        description="Directory of data sets; only download writes to it.",
    )
    data_url: str | None = Field(
        default=None,
        description="Directory of the prepared data set (dataset shards or tokens) in an object "
        "store, such as s3://datasets/books. One process per node downloads it to data_dir, which "
        "must be writable, and verifies it.",
    )
    download: bool = Field(
        default=False,
        description="Download mnist, fashion-mnist, cifar10 or cifar100 to data_dir first.",
    )
    loader_workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Data loader processes per training process. 0 reads data without them.",
    )
    run_dir: PurePosixPath = Field(
        default=PurePosixPath("/checkpoints/run"),
        description="Directory of this run on storage that all processes share. checkpoints/ and "
        "export/ are written there, and the run resumes from it.",
    )
    run_url: str | None = Field(
        default=None,
        description="Directory of runs in an object store, such as s3://models/runs. Checkpoints "
        "and the export are copied to <run_url>/<name of run_dir>, in the background. A run "
        "without an intact checkpoint in run_dir resumes from there.",
    )
    epochs: PositiveInt = Field(
        default=10,
        description="Length of the run in passes over the training data. Write at most one of "
        "epochs, train_steps, train_samples and train_tokens.",
    )
    train_steps: Length | None = Field(
        default=None, description="Length of the run in optimizer steps, instead of epochs."
    )
    train_samples: Length | None = Field(
        default=None,
        description="Length of the run in samples of all processes, instead of epochs. The last "
        "step may be smaller.",
    )
    train_tokens: Length | None = Field(
        default=None,
        description="Length of the run in tokens of text, rounded up to complete samples, instead "
        "of epochs.",
    )
    batch_size: PositiveInt = Field(default=64, description="Samples per process and batch.")
    accumulate: PositiveInt = Field(
        default=1, description="Batches per process and optimizer step (gradient accumulation)."
    )
    loss: LossName = Field(
        default=CROSS_ENTROPY,
        description="Loss to minimize: cross-entropy, or a custom function as "
        "package.module:function. It takes logits and targets and returns one value per sample.",
    )
    metrics: tuple[CustomName, ...] = Field(
        default=(),
        description="Custom metrics of the held-out data, each as package.module:function, which "
        "takes logits and targets and returns one value per sample. Their means are reported.",
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="Optimizer; sgd uses Nesterov momentum 0.9."
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, le=10, description="Peak learning rate of the schedule."
    )
    schedule: Literal["one-cycle", "linear", "constant"] = Field(
        default="one-cycle",
        description="Learning rate after the warm-up: cosine decay, linear decay, or constant.",
    )
    warm_up: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="Share of the run in which the learning rate rises to its peak.",
    )
    weight_decay: float = Field(
        default=1e-4, ge=0, le=1, description="Weight decay; decoupled with adamw."
    )
    weight_decay_on: Literal["all", "matrices"] = Field(
        default="all",
        description="Parameters with weight decay: all, or only matrices (two dimensions and "
        "more), so that biases and the scales of norms have none.",
    )
    betas: tuple[Beta, ...] = Field(
        default=(0.9, 0.999),
        min_length=2,
        max_length=2,
        description="Decay of the averages of the gradient and of its square (adamw).",
    )
    ema_decay: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Decay per step of an exponential moving average of the weights, such as "
        "0.999, which is evaluated and exported in their place. 0 keeps none.",
    )
    clip_norm: float = Field(
        default=0, ge=0, description="Maximum global gradient norm (clipping). 0 disables clipping."
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**31,
        description="Seed of weights, dropout, sample order and synthetic data.",
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="ddp replicates the model in every process, fsdp (FSDP2) shards it.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="Autocast precision. auto is bf16 on a GPU that computes it, otherwise fp32. "
        "Weights stay fp32; fp16 scales the loss.",
    )
    compile: bool = Field(
        default=False,
        description="Compile the model with torch.compile: slower start, faster steps.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass: less memory, slower steps.",
    )
    gradient_compression: Literal["none", "bf16", "fp16"] = Field(
        default="none", description="Data type of the gradients that processes exchange (ddp only)."
    )
    evaluate_steps: int = Field(
        default=0,
        ge=0,
        description="Steps between two evaluations within an epoch. 0 disables them.",
    )
    evaluate_samples: int = Field(
        default=0,
        ge=0,
        description="Maximum number of held-out samples per evaluation, evenly spaced. 0 uses all. "
        "The finished model is always evaluated on all.",
    )
    checkpoint_every: PositiveInt = Field(default=1, description="Epochs between two checkpoints.")
    checkpoint_steps: int = Field(
        default=0,
        ge=0,
        description="Steps between two checkpoints within an epoch. 0 disables them.",
    )
    checkpoint_async: bool = Field(
        default=True,
        description="Write checkpoints in the background; training waits only for a copy.",
    )
    keep_checkpoints: PositiveInt = Field(
        default=3, description="Number of newest checkpoints to keep."
    )
    keep_best: bool = Field(
        default=True,
        description="Also keep the evaluated checkpoint with the lowest held-out loss.",
    )
    log_every: int = Field(
        default=0,
        ge=0,
        description="Steps between two progress lines. 0 writes one line per epoch.",
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port on which the first process of every node serves Prometheus metrics. "
        "0 disables the port.",
    )
    device: DeviceName = Field(
        default="auto", description="Device; auto uses a GPU if one is available."
    )
    start_timeout: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="Seconds in which all processes must meet, and complete the first step, which "
        "may compile. Checks of data have no timeout.",
    )
    peer_timeout: float = Field(
        default=60,
        gt=0,
        le=86_400,
        description="Timeout of collective operations in seconds after the first step. Files may "
        "take longer.",
    )
    hang_timeout: float = Field(
        default=1800,
        ge=0,
        le=86_400,
        description="Seconds without progress (a step, a batch of the evaluation, a checkpoint, …) "
        "after which a process dumps all stacks and exits with code 76. 0 disables the watchdog. "
        "If it is not set, a longer start_timeout or peer_timeout replaces the default.",
    )
    preflight: Literal["auto", "off", "report", "strict"] = Field(
        default="auto",
        description="Measurements that find a slow node before the first step of a gang of three "
        "or more processes. report logs the node; strict also exits with code 69; off disables the "
        "measurements; auto is report on the CPU and off on GPUs.",
    )
    tensorboard: bool = Field(
        default=False, description="Write TensorBoard event files to run_dir/tensorboard."
    )
    profile_steps: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Steps to profile; traces are written to run_dir/profile. 0 disables it.",
    )
    profile_after: int = Field(
        default=10, ge=0, description="Steps of this process before the profile begins."
    )
    export_formats: tuple[ExportFormat, ...] = Field(
        default=(), description="Programs to export in addition to the weights: pt2 (torch.export)."
    )
    prune: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Share of the smallest weights to prune in a second export. 0 disables it.",
    )
    quantize: Literal["none", "static", "dynamic", "weight-only"] = Field(
        default="none",
        description="Also export an int8-quantized model: static for CNNs, dynamic or weight-only "
        "for linear layers.",
    )
    step_delay: float = Field(
        default=0,
        ge=0,
        le=60,
        description="Seconds to sleep after each step, to show an interruption on tiny data; for "
        "demonstrations only.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        """Refuse YAML's `epochs: yes`, which pydantic would read as 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError(
                "a boolean is not valid here (YAML reads yes, no, on and off as booleans)"
            )
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

    @field_validator("export_formats", "metrics", "betas", mode="before")
    @classmethod
    def _from_list(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @field_validator("init_from", "data_url", "run_url", *LENGTHS[1:], mode="before")
    @classmethod
    def _none_is_empty(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("run_dir", "data_dir", "init_from")
    @classmethod
    def _absolute(cls, value: PurePosixPath | None) -> PurePosixPath | None:
        if value is not None and (not value.is_absolute() or ".." in value.parts):
            raise ValueError("write an absolute path without '..', such as /checkpoints/my-run")
        return value

    @field_validator("metrics")
    @classmethod
    def _metrics_have_names_of_their_own(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [metric_name(each) for each in value]
        for name in names:
            if name in REPORTED or names.count(name) > 1:
                raise ValueError(f"another value is called {name}: rename the function")
        return value

    @model_validator(mode="after")
    def _init_from_is_complete(self) -> Self:
        if self.init_from is None and (self.init_sha256 or self.init_partial):
            name = "init_sha256" if self.init_sha256 else "init_partial"
            raise ValueError(f"{name} is set without init_from: write the directory of the weights")
        return self

    @model_validator(mode="after")
    def _urls_are_of_stores(self) -> Self:
        # Not a check of the field, whose message would contain a password.
        for name in ("data_url", "run_url"):
            url = getattr(self, name)
            if url is not None and (not URL.fullmatch(url) or ".." in url):
                schemes = ", ".join(f"{scheme}://" for scheme in STORES)
                raise ValueError(
                    f"{name} is not a directory in an object store: write {schemes} with a bucket "
                    "and a path, such as s3://models/runs, without a user, a query and a slash at "
                    "the end"
                )
        return self

    @model_validator(mode="after")
    def _data_url_has_a_manifest(self) -> Self:
        if self.data_url is not None and self.dataset not in PREPARED:
            raise ValueError(
                f"data_url is set, but dataset {self.dataset!r} has no manifest of its files: "
                f"write dataset {' or '.join(PREPARED)}, or leave data_url out"
            )
        return self

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        found = [
            f"{name} {getattr(self, name)}"
            for name in LENGTHS
            if name in self.model_fields_set and getattr(self, name) is not None
        ]
        if len(found) > 1:
            raise ValueError(f"{' and '.join(found)} are lengths of the run: write one of them")
        if self.train_tokens is not None and self.dataset not in TEXTS:
            raise ValueError(
                f"train_tokens is {self.train_tokens}, but dataset {self.dataset!r} has no tokens: "
                "write train_samples, train_steps or epochs"
            )
        return self

    @model_validator(mode="after")
    def _betas_are_of_adamw(self) -> Self:
        if self.optimizer == "sgd" and "betas" in self.model_fields_set:
            raise ValueError("betas is set, which only adamw has: leave it out with sgd")
        return self

    @model_validator(mode="after")
    def _hang_timeout_exceeds_step_delay(self) -> Self:
        if 0 < self.hang_timeout <= self.step_delay:
            raise ValueError(
                f"hang_timeout {self.hang_timeout:g} is not above step_delay {self.step_delay:g}: "
                "every step would count as a hang, so write more, or 0"
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
        if ":" in self.dataset and datasets != TEXTS:
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
        """Return the seconds without progress that count as a hang.

        A raised `start_timeout` or `peer_timeout` means that steps take this long; it also raises
        the default of `hang_timeout`.
        """
        if "hang_timeout" in self.model_fields_set:
            return self.hang_timeout
        return max(self.hang_timeout, self.start_timeout, self.peer_timeout)

    @property
    def length(self) -> tuple[str, int]:
        """Return the setting that is the length of the run, and its value."""
        for name in LENGTHS[1:]:
            if (value := getattr(self, name)) is not None:
                return name, value
        return "epochs", self.epochs

    def decisive(self) -> dict[str, str | int | float]:
        """Return the settings that determine the result, unlike location, logging or speed."""
        fields = type(self).model_fields
        length, _ = self.length
        names = [
            *(name for name in ALWAYS_DECISIVE if name != "epochs" or length == "epochs"),
            *(
                name
                for name in DECISIVE_WHERE_SET
                if getattr(self, name) != fields[name].get_default(call_default_factory=True)
                and (name, getattr(self, name)) != FORMER_DEFAULT
            ),
        ]
        return {name: written(getattr(self, name)) for name in names}

    def tensorflow_problems(self) -> list[str]:
        """Return a sentence for each setting that the program `examples.tensorflow` refuses."""
        problems = [
            f"{name} is not supported by the TensorFlow program: leave it out"
            for name in sorted(self.model_fields_set - TENSORFLOW_FIELDS)
        ]
        if (self.model, self.dataset) != ("digits-net", "digits"):
            problems.append(
                f"model {self.model!r} with dataset {self.dataset!r} is not supported by the "
                "TensorFlow program: write model digits-net and dataset digits"
            )
        return problems

    def to_args(self) -> list[str]:
        """Return the flags for `python -m training` that reproduce this configuration.

        Only fields that were set are written, so that a new default or a new field does not change
        the arguments (and with them the names) of existing runs.
        """
        return [
            f"{flag_of(name)}={written(getattr(self, name))}"
            for name in type(self).model_fields
            if name in self.model_fields_set
        ]


def metric_name(function: str) -> str:
    """Return the name of a metric: that of its function."""
    return function.rpartition(":")[2]


def flag_of(field: str) -> str:
    """Return the flag of a field: `batch_size` → `--batch-size`."""
    return "--" + field.replace("_", "-")


def written(value: Any) -> str | int | float:
    """Return a field's value as it is written on a command line; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, int | float) else str(value)
