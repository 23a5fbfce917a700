"""Environment variables from Secrets and ConfigMaps, and additional volumes of pods."""

import math
from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.types import (
    TMP_SIZE,
    AbsolutePath,
    DataKey,
    DnsLabel,
    DnsName,
    MemoryQuantity,
    Settings,
)
from kube.names import (
    CHECKPOINTS_PATH,
    CHECKPOINTS_VOLUME,
    DATASETS_VOLUME,
    HOSTS_PATH,
    SHM_PATH,
    SHM_VOLUME,
    SSH_PATH,
    SSH_VOLUME,
    TMP_PATH,
    TMP_VOLUME,
)
from kube.quantities import MEBIBYTE, parse_quantity

RESERVED_VOLUMES: Final = frozenset(
    {SHM_VOLUME, TMP_VOLUME, CHECKPOINTS_VOLUME, DATASETS_VOLUME, SSH_VOLUME}
)
"""Volume names that the stack itself uses in training pods."""

_RESERVED_PATHS: Final = (
    "/proc",
    "/sys",
    SHM_PATH,
    TMP_PATH,
    CHECKPOINTS_PATH,
    SSH_PATH,
    HOSTS_PATH,
)

_SOURCES: Final = ("claim", "secret", "config_map", "scratch")


class ReferenceSettings(Settings):
    """A value in a Secret or a ConfigMap in the pod's namespace."""

    secret: DnsName | None = Field(default=None, description="Name of the Secret.")
    config_map: DnsName | None = Field(default=None, description="Name of the ConfigMap.")
    key: DataKey = Field(description="Key of the value in the object.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.secret is None) == (self.config_map is None):
            raise ValueError("must set exactly one of secret and config_map")
        return self


class VolumeSettings(Settings):
    """An additional volume of every pod: a claim, a Secret, a ConfigMap, or scratch space."""

    path: AbsolutePath = Field(description="Mount path in the container.")
    claim: DnsLabel | None = Field(
        default=None, description="Key of a claim in this stack's `storage` section."
    )
    secret: DnsName | None = Field(
        default=None, description="Name of a Secret in the pod's namespace."
    )
    config_map: DnsName | None = Field(
        default=None, description="Name of a ConfigMap in the pod's namespace."
    )
    scratch: MemoryQuantity | None = Field(
        default=None,
        description="Size of an empty directory on the node's disk, deleted with the pod.",
    )
    read_only: bool = Field(
        default=False,
        description="Mount a claim read-only; Secrets and ConfigMaps are always read-only.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            names = " and ".join(sources) or "none"
            raise ValueError(f"must set exactly one of {', '.join(_SOURCES)}, but sets {names}")
        if self.read_only and self.claim is None:
            raise ValueError("sets read_only, which applies only to a claim: remove it")
        if ":" in self.path:
            raise ValueError(f"sets path to {self.path}, but mount paths may not contain ':'")
        path = f"{self.path.rstrip('/')}/"
        for reserved in (f"{each}/" for each in _RESERVED_PATHS):
            # A volume at a parent directory, such as /dev, would hide the reserved path.
            if path.startswith(reserved) or reserved.startswith(path):
                raise ValueError(
                    f"sets path to {self.path}, which is reserved in every pod: choose another"
                )
        return self


def duplicate_paths(volumes: Mapping[str, VolumeSettings]) -> list[str]:
    """Return the paths at which several volumes would be mounted, which the API server rejects."""
    paths = [volume.path.rstrip("/") for volume in volumes.values()]
    return sorted({path for path in paths if paths.count(path) > 1})


def disk_problem(
    disk: str | None, volumes: Mapping[str, VolumeSettings], download: str | None = None
) -> str | None:
    """Return an error message if a pod's ephemeral storage is less than the pod's volumes may use.

    `download` is the size limit of the volume for a downloaded model, if there is one.
    """
    sizes = {
        TMP_PATH: TMP_SIZE,
        **{f"volumes.{name}": each.scratch for name, each in volumes.items()},
        "fetch.size": download,
    }
    used = {name: size for name, size in sizes.items() if size is not None}
    needed = sum(map(parse_quantity, used.values()))
    if disk is None or parse_quantity(disk) >= needed:
        return None
    mebibytes = math.ceil(needed / MEBIBYTE)
    total = f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"
    parts = ", ".join(f"{name} {size}" for name, size in used.items())
    return (
        f"sets ephemeral_storage to {disk}, less than the volumes of a pod may use ({parts}), so "
        f"pods could be evicted: set at least {total}"
    )
