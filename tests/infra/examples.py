"""A small valid configuration that tests modify, and stacks that use every key."""

import copy
from pathlib import Path
from typing import Any

import yaml

from infra.settings import SettingsError, StackSettings, validate
from infra.settings.monitoring import Thresholds
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from training.config import TrainingConfig

DIGEST = "0123456789abcdef" * 4
TRAINING_IMAGE = f"registry.example.com/team/training@sha256:{DIGEST}"
INFERENCE_IMAGE = f"registry.example.com/team/inference@sha256:{DIGEST}"

Mistake = tuple[str, Any, str] | tuple[str, Any, str, str]
"""The path of a setting, an invalid value, the key in the error if it is not the path, and the
remedy."""

_GOOD: dict[str, Any] = {
    "cluster": {"context": "staging"},
    "volcano": {
        "queues": {"research": {"capability": {"nvidia.com/gpu": 16}}},
        "priority_classes": {"training": {"value": 100}},
    },
    "storage": {
        "classes": {
            "shared": {"kind": "nfs", "parameters": {"server": "nfs.example.com", "share": "/ml"}}
        },
        "claims": {
            "checkpoints": {"size": "100Gi", "storage_class": "shared"},
            "datasets": {"size": "1Ti", "storage_class": "shared"},
        },
    },
    "tenancy": {"namespace": "ml", "quota": {"gpus": 32}},
    "images": {
        "workloads": {
            "training": {"reference": TRAINING_IMAGE},
            "inference": {"reference": INFERENCE_IMAGE},
        }
    },
    "training": {
        "jobs": {
            "digits": {
                "queue": "research",
                "priority_class": "training",
                "nodes": 2,
                "gpus_per_node": 4,
                "cpu": "8",
                "memory": "64Gi",
                "shm": "16Gi",
                "datasets": "datasets",
                "hyperparameters": {"model": "digits-net", "dataset": "digits", "epochs": 3},
            }
        }
    },
    "inference": {"services": {"digits": {"job": "digits", "cpu": "500m", "memory": "2Gi"}}},
}


def good() -> dict[str, Any]:
    """Return a new copy of a valid configuration."""
    return copy.deepcopy(_GOOD)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the valid configuration with one value changed, at a dotted path."""
    values = good()
    *parents, last = path.split(".")
    node = values
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value
    return values


def without(path: str) -> dict[str, Any]:
    """Return the valid configuration without one value."""
    values = good()
    *parents, last = path.split(".")
    node = values
    for part in parents:
        node = node[part]
    del node[last]
    return values


def settings(path: str | None = None, value: Any = None) -> StackSettings:
    """Return the settings of the valid configuration, optionally with one value changed."""
    return validate(good() if path is None else changed(path, value))


def problems(values: dict[str, Any], secrets: frozenset[str] = frozenset()) -> list[str]:
    """Return all problems of a configuration."""
    try:
        validate(values, secrets)
    except SettingsError as error:
        return error.problems
    return []


def assert_reported(mistake: Mistake) -> None:
    """Assert that a mistake is reported with its key and remedy, in one sentence."""
    path, value, *_, advice = mistake
    key = mistake[2] if len(mistake) == 4 else path
    found = problems(changed(path, value))
    matching = [sentence for sentence in found if sentence.startswith(f"gpu-platform:{key}")]
    assert any(advice in sentence for sentence in matching), found
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in found)


SECRET = frozenset({"registry_password"})
"""The only key of `stacks` whose value is a secret."""


def stacks() -> list[dict[str, Any]]:
    """Return the configurations of stacks that together use every configuration key."""
    first, *others = yaml.load_all(
        Path(__file__).with_name("every_key.yaml").read_text(), yaml.CSafeLoader
    )
    first["training"]["jobs"]["digits"]["hyperparameters"] = {
        name: value
        for name, value in TrainingConfig().model_dump(mode="json").items()
        if name not in DERIVED_HYPERPARAMETERS
    }
    first["monitoring"]["thresholds"] = Thresholds().model_dump(mode="json")
    return [{**first, "registry_password": "hunter2"}, *others]
