"""Hyperparameters that the default program of kind `tensorflow` follows (examples/tensorflow)."""

from typing import Final

from training.config import TrainingConfig

PROGRAM: Final = "examples.tensorflow"

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
MODEL: Final = "digits-net"
DATASET: Final = "digits"


def unfollowed(config: TrainingConfig) -> list[str]:
    """Return a sentence for each setting that the program would refuse."""
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
