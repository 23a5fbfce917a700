"""Who else trains: TF_CONFIG names the workers, and its absence a single one.

Format: TensorFlow's guide "Distributed training", TF_CONFIG. Imports no TensorFlow.
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
    """This process among the `workers` that train together; the first of them is the chief."""

    index: int = 0
    workers: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether it is the one whose files stay and that tells how the run goes."""
        return self.index == 0


def read_worker(environment: Mapping[str, str]) -> Worker:
    """Where this process stands. Raises ConfigurationError when TF_CONFIG cannot be used."""
    text = environment.get("TF_CONFIG")
    if not text:
        return Worker()
    try:
        found = _TfConfig.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise ConfigurationError(
            f"TF_CONFIG is no cluster as TensorFlow writes it: {error}"
        ) from None
    others = sorted(set(found.cluster) - {"worker", "chief"})
    if others or found.task.type not in found.cluster:
        raise ConfigurationError(
            f"TF_CONFIG has task {found.task.type!r} in a cluster of {', '.join(found.cluster)}: "
            "this program knows workers and a chief, which are all equal, and no others"
        )
    # The chief comes first, wherever it was written.
    ranks = [
        (role, i) for role in ("chief", "worker") for i in range(len(found.cluster.get(role, [])))
    ]
    place = (found.task.type, found.task.index)
    if place not in ranks:
        raise ConfigurationError(
            f"TF_CONFIG has task {found.task.type} {found.task.index}, but the cluster has "
            f"{len(found.cluster[found.task.type])} of this type"
        )
    return Worker(ranks.index(place), len(ranks))
