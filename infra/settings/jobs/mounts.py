"""What a job's pods get from elsewhere: single values by reference, and further volumes."""

from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.types import AbsolutePath, DnsLabel, DnsName, MemoryQuantity, Settings
from kube.names import (
    CHECKPOINTS_PATH,
    CHECKPOINTS_VOLUME,
    DATASETS_PATH,
    DATASETS_VOLUME,
    SHM_PATH,
    SHM_VOLUME,
    SSH_PATH,
    SSH_VOLUME,
    TMP_PATH,
    TMP_VOLUME,
)

TAKEN_VOLUMES: Final = frozenset(
    {SHM_VOLUME, TMP_VOLUME, CHECKPOINTS_VOLUME, DATASETS_VOLUME, SSH_VOLUME}
)
"""Names of volumes that every pod may have."""

TAKEN_PATHS: Final = (SHM_PATH, TMP_PATH, CHECKPOINTS_PATH, DATASETS_PATH, SSH_PATH)


class ReferenceSettings(Settings):
    """A value that stands in a Secret or a ConfigMap of the namespace, and not here."""

    secret: DnsName | None = Field(default=None, description="name of the Secret")
    config_map: DnsName | None = Field(default=None, description="name of the ConfigMap")
    key: str = Field(
        pattern=r"^[-._A-Za-z0-9]{1,253}$", description="key in it whose value is taken"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.secret is None) == (self.config_map is None):
            raise ValueError("needs one of secret and config_map, and not both")
        return self


class VolumeSettings(Settings):
    """A further volume of every pod: a claim, a Secret, a ConfigMap, or room on the node."""

    path: AbsolutePath = Field(description="where the container sees it")
    claim: DnsLabel | None = Field(default=None, description="claim of this stack")
    secret: DnsName | None = Field(default=None, description="Secret of the namespace")
    config_map: DnsName | None = Field(default=None, description="ConfigMap of the namespace")
    scratch: MemoryQuantity | None = Field(
        default=None,
        description="size of an empty folder on the node's disk that goes with the pod",
    )
    read_only: bool = Field(
        default=False, description="whether a claim is only read; Secrets and ConfigMaps always are"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"needs one of {', '.join(_SOURCES)}, but has {found}")
        if self.read_only and self.claim is None:
            raise ValueError(f"sets read_only beside {given[0]}: it belongs to claim, leave it out")
        for taken in TAKEN_PATHS:
            if self.path == "/" or f"{self.path.rstrip('/')}/".startswith(f"{taken}/"):
                raise ValueError(
                    f"has path {self.path}, where every pod has something: choose another"
                )
        return self


_SOURCES: Final = ("claim", "secret", "config_map", "scratch")
