"""Where the pods of a job may run: together, and on what."""

from typing import Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import PositiveInt, QualifiedName, Settings


class PackingSettings(Settings):
    """Keep the pods of the job within one part of the cluster, told by a label of the nodes."""

    label: QualifiedName = Field(
        description="label of the nodes whose value is the part, such as "
        "topology.kubernetes.io/zone or a label that names the rack or switch"
    )
    required: bool = Field(
        default=False,
        description="wait until the part that the first pod chose has room for all, instead of "
        "preferring it",
    )


class NetworkTopologySettings(Settings):
    """Keep the pods close in Volcano's own tree of the network (HyperNodes)."""

    mode: Literal["hard", "soft"] = Field(
        default="soft", description="hard waits for a part with room, soft prefers it"
    )
    highest_tier: PositiveInt | None = Field(
        default=None, description="highest tier that the pods may span; only with hard"
    )

    @model_validator(mode="after")
    def _tier_fits_mode(self) -> Self:
        if (self.mode == "hard") != (self.highest_tier is not None):
            raise ValueError(
                f"has mode {self.mode!r}, and highest_tier is {self.highest_tier}: it is written "
                "with mode hard, only"
            )
        return self
