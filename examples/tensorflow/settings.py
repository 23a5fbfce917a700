"""Which of the training program's settings this one follows. Imports no TensorFlow."""

from typing import Final

from training.config import TrainingConfig
from workload.configuration import ConfigurationError

FOLLOWED: Final = frozenset(
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
"""Fields of TrainingConfig; `batch_size` counts the samples of one GPU, or of the CPU."""

MODEL: Final = "digits-net"
DATASET: Final = "digits"


def problems(config: TrainingConfig) -> list[str]:
    """What was set and is not followed here, one sentence for each."""
    found = [
        f"{name} is not followed by the TensorFlow program: leave it out"
        for name in sorted(config.model_fields_set - FOLLOWED)
    ]
    if (config.model, config.dataset) != (MODEL, DATASET):
        found.append(
            f"model {config.model!r} with dataset {config.dataset!r} is not known to the "
            f"TensorFlow program: write model {MODEL} and dataset {DATASET}"
        )
    return found


def check(config: TrainingConfig) -> None:
    """Refuse what would be ignored. Raises ConfigurationError."""
    if sentences := problems(config):
        raise ConfigurationError("; ".join(sentences))
