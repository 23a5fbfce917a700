"""Hyperparameters that the TensorFlow program supports. Imports no TensorFlow."""

from typing import Final

from training.config import TrainingConfig
from workload.configuration import ConfigurationError

SUPPORTED: Final = frozenset(
    {
        "model",
        "dataset",
        "run_dir",
        "epochs",
        "batch_size",
        "learning_rate",
        "seed",
        "checkpoint_every",
        "keep_checkpoints",
        "peer_timeout",
    }
)
"""Fields of TrainingConfig. `batch_size` is the number of samples per GPU, or on the CPU."""

MODEL: Final = "digits-net"
DATASET: Final = "digits"


def problems(config: TrainingConfig) -> list[str]:
    """Return a sentence for each setting that the program does not support."""
    found = [
        f"{name} is not supported by the TensorFlow program: leave it out"
        for name in sorted(config.model_fields_set - SUPPORTED)
    ]
    if (config.model, config.dataset) != (MODEL, DATASET):
        found.append(
            f"model {config.model!r} with dataset {config.dataset!r} is not supported by the "
            f"TensorFlow program: write model {MODEL} and dataset {DATASET}"
        )
    return found


def check(config: TrainingConfig) -> None:
    """Raise ConfigurationError if the program does not support a setting."""
    if sentences := problems(config):
        raise ConfigurationError("; ".join(sentences))
