"""The batch scheduler: its release, queues and priority classes."""

import itertools
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import (
    DnsLabel,
    DnsName,
    PositiveInt,
    QualifiedName,
    Quantity,
    Settings,
    parse_quantity,
)

ResourceAmounts = dict[QualifiedName, Quantity]


class QueueSettings(Settings):
    """A share of the cluster that jobs wait in line for."""

    weight: PositiveInt = Field(1, description="share of the cluster among the queues")
    reclaimable: bool = Field(
        True, description="others may take back what this queue uses above its share"
    )
    capability: ResourceAmounts = Field({}, description="most that the queue may use in all")
    deserved: ResourceAmounts = Field(
        {}, description="what the queue may always get back from others"
    )
    guarantee: ResourceAmounts = Field({}, description="what is kept free for the queue")
    parent: DnsName | None = Field(None, description="queue above this one")

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        rising = ("guarantee", "deserved", "capability")
        for low, high in itertools.combinations(rising, 2):
            upper = getattr(self, high)
            for resource, amount in getattr(self, low).items():
                if resource in upper and parse_quantity(amount) > parse_quantity(upper[resource]):
                    raise ValueError(
                        f"contradicts itself: {low} of {resource} is {amount}, more than its "
                        f"{high} of {upper[resource]}"
                    )
        return self


class PriorityClassSettings(Settings):
    """How important pods are when not all find a place."""

    value: int = Field(ge=-(10**9), le=10**9, description="higher goes first")
    preemption: Literal["PreemptLowerPriority", "Never"] = Field(
        "PreemptLowerPriority", description="whether pods may push out less important ones"
    )
    description: str = Field("", description="who should use it")


class VolcanoSettings(Settings):
    """Volcano's chart and what is configured in it."""

    install: bool = Field(
        True,
        description="install the chart; false where the cluster has Volcano (queues and priority "
        "classes are made all the same)",
    )
    namespace: DnsLabel = Field("volcano-system", description="namespace of the release")
    chart: str = Field("volcano", min_length=1, description="name of the chart")
    repository: str = Field(
        "https://volcano-sh.github.io/helm-charts",
        pattern=r"^(https?|oci)://\S+$",
        description="address of the chart's repository",
    )
    version: str = Field(
        "1.15.1", pattern=r"^v?\d+\.\d+\.\d+\S*$", description="exact version of the chart"
    )
    values: dict[str, Any] = Field({}, description="values of the chart, as the chart names them")
    timeout_seconds: PositiveInt = Field(
        300, description="longest wait for the scheduler to be ready"
    )
    queues: dict[DnsName, QueueSettings] = Field({}, description="queues by name")
    priority_classes: dict[DnsName, PriorityClassSettings] = Field(
        {}, description="priority classes by name"
    )
