"""Configuration of a training run: validation across settings, and values derived from them.

This module does not import torch, because stack previews use it to validate the hyperparameters of
jobs.
"""

import json
from pathlib import PurePosixPath
from types import NoneType
from typing import Any, Final, Self, get_args, get_origin

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from training.settings import IMAGES, PREPARED, TEXTS, DatasetName, TrainingSettings
from workload.catalog import MODELS, Option, checked_options
from workload.configuration import problem_sentences
from workload.files import is_utf8
from workload.progress import Epoch, Finished
from workload.store import STORE_SCHEMES, URL

DATASETS: Final[dict[str, tuple[DatasetName, ...]]] = {
    "digits-net": ("digits", "synthetic", "shards"),
    "mnist-net": ("digits", "glyphs", "mnist", "fashion-mnist", "synthetic", "shards"),
    "gpt": TEXTS,
}
"""Maps a model to its built-in data sets. The project's other models accept any of `IMAGES`. All
models except gpt also accept custom data sets."""

REPORTED_VALUES: Final = Epoch.model_fields.keys() | Finished.model_fields.keys()
"""Names of the values that a run reports; custom metrics must have different names."""


TENSORFLOW_FIELDS: Final = frozenset((
    "model", "dataset", "run_dir", "epochs", "batch_size", "learning_rate", "seed",
    "checkpoint_every", "keep_checkpoints", "peer_timeout",
))  # fmt: skip
"""Fields that `examples.tensorflow` reads; its `batch_size` applies to each GPU, or to the CPU."""

LENGTHS: Final = ("epochs", "train_steps", "train_samples", "train_tokens")
"""Settings that determine the length of a run. At most one of them may be set."""

ALWAYS_LISTED: Final = (
    "model", "dataset", "epochs", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip
LISTED_IF_SET: Final = (
    "model_options", "loss", "optimizer", "schedule", "warm_up", "accumulate", "clip_norm",
    "weight_decay_on", "betas", "ema_decay", "precision", "gradient_compression", "init_from",
    "init_sha256", "init_partial", "init_adapter", "lora_rank", "lora_alpha", "lora_dropout",
    "lora_targets", *LENGTHS[1:],
)  # fmt: skip
"""Settings that `result_settings` lists only if they differ from the default. These settings were
added later, and must not change the lists of older runs."""


class TrainingConfig(TrainingSettings):
    """Configuration of one training run. Field names are flag names with underscores."""

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: object, info: ValidationInfo) -> object:
        """Parse a command-line value; reject unexpected booleans, such as YAML's `epochs: yes`.

        Pydantic would convert a boolean to 0 or 1.
        """
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation is not bool:
            raise ValueError(
                "a boolean is not valid here (YAML reads yes, no, on and off as booleans)"
            )
        if not isinstance(value, str):
            return value
        # Checkpoints and the export contain the settings as JSON.
        if not is_utf8(value):
            raise ValueError("must be UTF-8")
        if get_origin(annotation) is dict:
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                raise ValueError('must be a JSON object, such as {"layers": 6}') from None
        if get_origin(annotation) is tuple:
            return [part for part in value.split(",") if part]
        return None if not value and NoneType in get_args(annotation) else value

    @field_validator("run_dir", "data_dir", "init_from", "init_adapter")
    @classmethod
    def _absolute(cls, value: PurePosixPath | None) -> PurePosixPath | None:
        if value is not None and (not value.is_absolute() or ".." in value.parts):
            raise ValueError("use an absolute path without '..', such as /checkpoints/my-run")
        return value

    @field_validator("model_options")
    @classmethod
    def _options_are_utf8(cls, value: dict[str, Option]) -> dict[str, Option]:
        if not is_utf8(json.dumps(value, ensure_ascii=False)):
            raise ValueError("must be UTF-8")
        return value

    @field_validator("metrics")
    @classmethod
    def _metric_names_are_unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [metric_name(each) for each in value]
        for name in names:
            if name in REPORTED_VALUES or names.count(name) > 1:
                raise ValueError(f"another value is already named {name}: rename the function")
        return value

    @model_validator(mode="after")
    def _initial_weights_fit(self) -> Self:
        if self.init_from is None and (self.init_sha256 or self.init_partial):
            name = "init_sha256" if self.init_sha256 else "init_partial"
            raise ValueError(f"{name} requires init_from: set it to the directory of the weights")
        fields = type(self).model_fields
        for name in ("lora_alpha", "lora_dropout", "lora_targets"):
            if not self.lora_rank and getattr(self, name) != fields[name].default:
                raise ValueError(f"{name} requires lora_rank: set it to a rank such as 8")
        for name in ("lora_rank", "init_adapter"):
            if getattr(self, name) and self.model != "gpt":
                raise ValueError(f"{name} is set, but only model gpt has LoRA adapters")
            if getattr(self, name) and self.init_from is None:
                raise ValueError(f"{name} requires init_from: set it to the trained weights")
        if len(set(self.lora_targets)) < len(self.lora_targets):
            raise ValueError("lora_targets contains a duplicate layer: list each layer only once")
        return self

    @model_validator(mode="after")
    def _urls_fit(self) -> Self:
        # Check URLs here: the message of a field validator would contain the URL and its password.
        for name in ("data_url", "run_url"):
            url = getattr(self, name)
            if url is not None and (not URL.fullmatch(url) or ".." in url):
                schemes = ", ".join(f"{scheme}://" for scheme in STORE_SCHEMES)
                raise ValueError(
                    f"{name} is not a directory in an object store: use one of {schemes} with a "
                    "bucket and a path, such as s3://models/runs, without a user, a query or a "
                    "trailing slash"
                )
        if self.run_url is not None and set(self.run_dir.name) & set("#%?"):
            raise ValueError(
                f"run_dir {self.run_dir} ends in a name that cannot be part of run_url: leave out "
                "'#', '%' and '?'"
            )
        if self.data_url is not None and self.dataset not in PREPARED:
            raise ValueError(
                f"data_url is set, but dataset {self.dataset!r} has no manifest of its files: "
                f"set dataset to {' or '.join(PREPARED)}, or leave data_url out"
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
            raise ValueError(f"{' and '.join(found)} each set the run's length: keep one")
        if self.train_tokens is not None and self.dataset not in TEXTS:
            raise ValueError(
                f"train_tokens is {self.train_tokens}, but dataset {self.dataset!r} has no tokens: "
                "set train_samples, train_steps or epochs instead"
            )
        return self

    @model_validator(mode="after")
    def _training_fits(self) -> Self:
        if self.optimizer == "sgd" and "betas" in self.model_fields_set:
            raise ValueError("betas is set, but only adamw uses it: leave it out with sgd")
        if 0 < self.hang_timeout <= self.step_delay:
            raise ValueError(
                f"hang_timeout {self.hang_timeout:g} must exceed step_delay {self.step_delay:g}, "
                "or every step would count as a hang: increase it, or set it to 0"
            )
        if self.parallel == "fsdp" and self.gradient_compression != "none":
            raise ValueError(
                f"gradient_compression {self.gradient_compression} requires ddp: with fsdp, set it "
                "to none (with precision bf16, fsdp already sends half as much data)"
            )
        return self

    @model_validator(mode="after")
    def _model_fits(self) -> Self:
        try:
            checked_options(self.model, self.model_options)
        except ValidationError as error:
            raise ValueError(
                f"model_options of {self.model}: " + "; ".join(problem_sentences(error))
            ) from None
        datasets = DATASETS.get(self.model, IMAGES)
        if self.model not in MODELS or self.dataset in datasets:
            return self
        if ":" in self.dataset and datasets != TEXTS:
            return self
        difference = "different data"
        if self.dataset in IMAGES and datasets != TEXTS:
            difference = "smaller images"
        raise ValueError(
            f"model {self.model!r} needs {difference} than dataset {self.dataset!r} provides: "
            f"set dataset to {' or '.join(datasets)}"
        )

    @property
    def hang_limit(self) -> float:
        """Number of seconds without progress that count as a hang.

        Unless `hang_timeout` is set, the limit is at least the larger of `start_timeout` and
        `peer_timeout`, because a step may take that long.
        """
        if "hang_timeout" in self.model_fields_set:
            return self.hang_timeout
        return max(self.hang_timeout, self.start_timeout, self.peer_timeout)

    @property
    def length(self) -> tuple[str, int]:
        """Setting that determines the length of the run, and its value."""
        for name in LENGTHS[1:]:
            if (value := getattr(self, name)) is not None:
                return name, value
        return "epochs", self.epochs

    def result_settings(self) -> dict[str, str | int | float]:
        """Return the settings that affect the result.

        Settings for paths, logging and speed are not included.
        """
        fields = type(self).model_fields
        length, _ = self.length
        names = [
            *(name for name in ALWAYS_LISTED if name != "epochs" or length == "epochs"),
            *(
                name
                for name in LISTED_IF_SET
                if getattr(self, name) != fields[name].get_default(call_default_factory=True)
                # Omit fp32, which was the default of older runs and is not in their lists.
                and (name, getattr(self, name)) != ("precision", "fp32")
            ),
        ]
        return {name: written(getattr(self, name)) for name in names}

    def tensorflow_problems(self) -> list[str]:
        """Return a sentence for each setting that `examples.tensorflow` rejects."""
        problems = [
            f"{name} is not supported by the TensorFlow program: leave it out"
            for name in sorted(self.model_fields_set - TENSORFLOW_FIELDS)
        ]
        if (self.model, self.dataset) != ("digits-net", "digits"):
            problems.append(
                f"model {self.model!r} with dataset {self.dataset!r} is not supported by the "
                "TensorFlow program: set model to digits-net and dataset to digits"
            )
        return problems

    def to_args(self) -> list[str]:
        """Return the flags for `python -m training` that reproduce this configuration.

        Only fields that were set are included, so that a new default or a new field does not change
        the arguments (and with them the names) of existing runs.
        """
        return [
            f"{flag_of(name)}={written(getattr(self, name))}"
            for name in type(self).model_fields
            if name in self.model_fields_set
        ]


def metric_name(function: str) -> str:
    """Return the name of a metric: the name of its function."""
    return function.rpartition(":")[2]


def flag_of(field: str) -> str:
    """Return the flag of a field: `batch_size` → `--batch-size`."""
    return "--" + field.replace("_", "-")


def written(value: Any) -> str | int | float:
    """Convert a field's value to its command-line form; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, int | float) else str(value)
