"""Storage for data sets and checkpoints."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infra.settings.types import (
    AbsolutePath,
    DnsLabel,
    DnsName,
    LabelValue,
    MemoryQuantity,
    QualifiedName,
    Settings,
)

AccessMode = Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]


def _exclusive(modes: list[AccessMode]) -> list[AccessMode]:
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        raise ValueError(
            "contains ReadWriteOncePod, which cannot be combined with other modes: remove it, or "
            "the other modes"
        )
    return modes


AccessModes = Annotated[list[AccessMode], Field(min_length=1), AfterValidator(_exclusive)]
ReclaimPolicy = Literal["Retain", "Delete"]

PROVISIONERS: Final = {
    "cephfs": "cephfs.csi.ceph.com",
    "nfs": "nfs.csi.k8s.io",
    "local": "kubernetes.io/no-provisioner",
}
_REQUIRED_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "cephfs": ("clusterID", "fsName"),
    "nfs": ("server", "share"),
}


class StorageClassSettings(Settings):
    """A storage class."""

    kind: Literal["cephfs", "nfs", "local", "other"] = Field(
        description="CephFS CSI, NFS CSI, local volumes or any other provisioner."
    )
    provisioner: QualifiedName | None = Field(
        default=None,
        description="Name of the driver, if it is not the kind's default. Required with "
        "`kind: other`.",
    )
    parameters: dict[str, str] = Field(
        default={}, description="Driver parameters. All values are strings."
    )
    mount_options: list[str] = Field(default=[], description="Mount options.")
    reclaim_policy: ReclaimPolicy = Field(
        default="Retain", description="Retain or delete the data when its claim is deleted."
    )
    binding: Literal["Immediate", "WaitForFirstConsumer"] = Field(
        default="Immediate",
        description="Volume binding mode. With WaitForFirstConsumer, the nodes need the CSI "
        "driver, and a gang that needs several nodes never starts while the claim is unbound.",
    )
    expandable: bool = Field(default=False, description="Allow claims to be expanded later.")

    @model_validator(mode="after")
    def _has_required_settings(self) -> Self:
        if self.kind == "other" and self.provisioner is None:
            raise ValueError(
                "has `kind: other`, which requires `provisioner`: set the driver's name"
            )
        if missing := [
            p for p in _REQUIRED_PARAMETERS.get(self.kind, ()) if p not in self.parameters
        ]:
            raise ValueError(
                f"has kind {self.kind}, which requires the parameters {', '.join(missing)}: add "
                "them"
            )
        return self


class LocalSource(Settings):
    """A directory on one node, or a shared mount on several nodes."""

    path: AbsolutePath = Field(description="Path of the directory, the same on every node.")
    nodes: dict[QualifiedName, Annotated[list[LabelValue], Field(min_length=1)]] = Field(
        min_length=1,
        description="Maps node labels to their values on the nodes that have the directory.",
    )


class NfsSource(Settings):
    """A directory that an NFS server exports."""

    server: str = Field(min_length=1, description="Host name or address of the server.")
    path: AbsolutePath = Field(description="Exported directory.")


class CsiSource(Settings):
    """An existing volume of a CSI driver."""

    driver: DnsName = Field(max_length=63, description="Name of the driver.")
    handle: str = Field(min_length=1, description="The driver's identifier for the volume.")
    attributes: dict[str, str] = Field(default={}, description="Attributes that the driver needs.")


class VolumeSettings(Settings):
    """An existing volume that the stack registers in the cluster."""

    capacity: MemoryQuantity = Field(description="Capacity of the volume.")
    access_modes: AccessModes = Field(description="Access modes of the volume.")
    storage_class: DnsName | None = Field(
        default=None, description="Storage class of the volume. If null, it has no class."
    )
    reclaim_policy: ReclaimPolicy = Field(
        default="Retain", description="Retain or delete the volume when its claim is deleted."
    )
    local: LocalSource | None = Field(default=None, description="A directory on nodes.")
    nfs: NfsSource | None = Field(default=None, description="A directory of an NFS server.")
    csi: CsiSource | None = Field(default=None, description="A volume of a CSI driver.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in ("local", "nfs", "csi") if getattr(self, name) is not None]
        if len(sources) != 1:
            names = " and ".join(sources) or "none"
            raise ValueError(f"must set exactly one of `local`, `nfs` and `csi`, but sets {names}")
        return self


class ClaimSettings(Settings):
    """A claim that pods of the stack mount."""

    name: DnsLabel | None = Field(
        default=None,
        description="Name of the claim in the cluster. Defaults to the key. A new name creates a "
        "new claim, which needs another `volume`, because a retained claim stays bound to its "
        "volume.",
    )
    size: MemoryQuantity = Field(description="Requested size.")
    access_modes: AccessModes = Field(
        default=["ReadWriteMany"], description="Access modes of the claim."
    )
    storage_class: DnsName | None = Field(
        default=None,
        description="Storage class of the claim. If null, it needs a `volume` without a class.",
    )
    volume: DnsName | None = Field(
        default=None, description="Volume in this stack that the claim is bound to."
    )
    protect: bool = Field(
        default=False,
        description="Protect the claim: Pulumi rejects its deletion until this is false.",
    )
    retain: bool = Field(
        default=True,
        description="Keep the claim and its data in the cluster when it is removed from the stack.",
    )

    @model_validator(mode="after")
    def _has_class_or_volume(self) -> Self:
        if self.storage_class is None and self.volume is None:
            raise ValueError("must set `storage_class`, or `volume` to bind the claim to a volume")
        return self


class StorageSettings(Settings):
    """Storage classes, existing volumes and claims."""

    classes: dict[DnsName, StorageClassSettings] = Field(
        default={}, description="Storage classes by name."
    )
    volumes: dict[DnsName, VolumeSettings] = Field(
        default={}, description="Existing volumes by name."
    )
    claims: dict[DnsLabel, ClaimSettings] = Field(
        default={}, description="Claims by the key that jobs and services refer to."
    )
