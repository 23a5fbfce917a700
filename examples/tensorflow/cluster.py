"""The workers of a run, read from the TF_CONFIG variable. If it is not set, there is one worker.

TensorFlow's guide "Distributed training" describes TF_CONFIG. This module does not import
TensorFlow.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workload.configuration import ConfigurationError


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    index: int = Field(ge=0)


class _TfConfig(BaseModel):
    model_config = ConfigDict(extra="ignore")

    cluster: dict[str, list[str]]
    task: _Task


@dataclass(frozen=True)
class Worker:
    """Position of this process among the workers. The first worker is the chief."""

    index: int = 0
    workers: int = 1

    @property
    def is_chief(self) -> bool:
        """True for the worker that reports the progress and whose files are kept."""
        return self.index == 0


def read_worker(environment: Mapping[str, str]) -> Worker:
    """Return this process's worker. Raise ConfigurationError if TF_CONFIG is invalid."""
    text = environment.get("TF_CONFIG")
    if not text:
        return Worker()
    try:
        config = _TfConfig.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise ConfigurationError(
            f"TF_CONFIG is not a valid TensorFlow cluster specification: {error}"
        ) from None
    unsupported = sorted(set(config.cluster) - {"worker", "chief"})
    if unsupported or config.task.type not in config.cluster:
        raise ConfigurationError(
            f"TF_CONFIG has task {config.task.type!r} in a cluster of {', '.join(config.cluster)}: "
            "this program supports only workers and a chief"
        )
    # The chief comes first, regardless of the order in TF_CONFIG.
    ranks = [
        (role, i) for role in ("chief", "worker") for i in range(len(config.cluster.get(role, [])))
    ]
    task = (config.task.type, config.task.index)
    if task not in ranks:
        raise ConfigurationError(
            f"TF_CONFIG has task {config.task.type} {config.task.index}, but the number of "
            f"{config.task.type} tasks in the cluster is {len(config.cluster[config.task.type])}"
        )
    return Worker(ranks.index(task), len(ranks))
