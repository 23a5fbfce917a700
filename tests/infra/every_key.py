"""Stacks that together use every configuration key."""

from pathlib import Path
from typing import Any

import yaml

from infra.settings.monitoring import Thresholds
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from training.config import TrainingConfig


def stacks() -> list[dict[str, Any]]:
    """Return the configurations of the stacks."""
    first, *others = yaml.load_all(
        Path(__file__).with_suffix(".yaml").read_text(), yaml.CSafeLoader
    )
    first["training"]["jobs"]["digits"]["hyperparameters"] = {
        name: value
        for name, value in TrainingConfig().model_dump(mode="json").items()
        if name not in DERIVED_HYPERPARAMETERS
    }
    first["monitoring"]["thresholds"] = Thresholds().model_dump(mode="json")
    return [{**first, "registry_password": "hunter2"}, *others]
