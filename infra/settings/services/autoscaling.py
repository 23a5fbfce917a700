"""How many replicas of a service run."""

from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.types import PositiveInt, Settings

DEFAULT_CPU_PERCENT: Final = 70


class KedaSettings(Settings):
    """Let KEDA scale, which asks Prometheus and can end the last pod."""

    prometheus: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="address of Prometheus, such as http://prometheus.monitoring:9090",
    )
    cooldown_seconds: PositiveInt = Field(
        default=300, description="time without requests after which the last pod ends"
    )
    activation_query: str | None = Field(
        default=None,
        min_length=1,
        description="PromQL that is above 0 while requests come, such as the gateway's rate of "
        "requests: pods that are not there report nothing",
    )


class AutoscalingSettings(Settings):
    """Let the load decide how many replicas run."""

    min: int = Field(default=1, ge=0, description="fewest replicas; 0 needs keda")
    max: PositiveInt = Field(description="most replicas")
    cpu_percent: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="use of the CPU request, in percent, that is aimed at; "
        f"{DEFAULT_CPU_PERCENT} without queue_depth",
    )
    queue_depth: PositiveInt | None = Field(
        default=None,
        description="samples waiting in each pod's queue that are aimed at; without keda it needs "
        "an adapter that gives the metric inference_queue_depth to the cluster",
    )
    keda: KedaSettings | None = Field(
        default=None, description="KEDA in place of a HorizontalPodAutoscaler"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"contradicts itself: min is {self.min}, max is {self.max}")
        if self.keda is not None and self.queue_depth is None:
            raise ValueError("has keda without queue_depth, which is what KEDA scales by: write it")
        if self.min == 0 and (self.keda is None or self.keda.activation_query is None):
            raise ValueError(
                "has min 0, which needs keda.activation_query: with no pod there is no other sign "
                "that requests come"
            )
        return self

    @property
    def cpu_target(self) -> int | None:
        """Percent of the CPU request, or None where the CPU does not count."""
        if self.cpu_percent is None and self.queue_depth is None:
            return DEFAULT_CPU_PERCENT
        return self.cpu_percent
