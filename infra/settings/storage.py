"""Where data sets and checkpoints live."""

from typing import Final, Literal, Self

from pydantic import Field, model_validator

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
ReclaimPolicy = Literal["Retain", "Delete"]

PROVISIONERS: Final = {
    "cephfs": "cephfs.csi.ceph.com",
    "nfs": "nfs.csi.k8s.io",
    "local": "kubernetes.io/no-provisioner",
}
_NEEDED_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "cephfs": ("clusterID", "fsName"),
    "nfs": ("server", "share"),
}


class StorageClassSettings(Settings):
    """A kind of storage that claims can ask for."""

    kind: Literal["cephfs", "nfs", "local", "other"] = Field(
        description="CephFS CSI, NFS CSI, local volumes, or any other provisioner"
    )
    provisioner: str | None = Field(
        default=None,
        min_length=1,
        description="name of the driver where it is not the usual one; needed with other",
    )
    parameters: dict[str, str] = Field(
        default={}, description="parameters of the driver, all of them text"
    )
    mount_options: list[str] = Field(default=[], description="options of the mount")
    reclaim_policy: ReclaimPolicy = Field(
        default="Retain", description="what happens to the data when the claim is deleted"
    )
    binding: Literal["Immediate", "WaitForFirstConsumer"] = Field(
        default="Immediate", description="when claims are bound"
    )
    expandable: bool = Field(default=False, description="claims may grow later")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "other" and self.provisioner is None:
            raise ValueError("is of kind other and lacks `provisioner`, the name of the driver")
        if missing := [
            p for p in _NEEDED_PARAMETERS.get(self.kind, ()) if p not in self.parameters
        ]:
            raise ValueError(f"of kind {self.kind} lacks the parameters {', '.join(missing)}")
        return self


class LocalSource(Settings):
    """A folder on nodes: of one node, or a shared mount that several nodes see."""

    path: AbsolutePath = Field(description="the folder, the same on every node")
    nodes: dict[QualifiedName, list[LabelValue]] = Field(
        min_length=1, description="node labels, and the values with which a node has the folder"
    )


class NfsSource(Settings):
    """A folder that an NFS server exports."""

    server: str = Field(min_length=1, description="host name or address of the server")
    path: AbsolutePath = Field(description="exported folder")


class CsiSource(Settings):
    """A volume that a CSI driver already has."""

    driver: DnsName = Field(description="name of the driver")
    handle: str = Field(min_length=1, description="the driver's identifier of the volume")
    attributes: dict[str, str] = Field(default={}, description="attributes that the driver needs")


class VolumeSettings(Settings):
    """A volume that exists already, made known to the cluster."""

    capacity: MemoryQuantity = Field(description="size that claims may count on")
    access_modes: list[AccessMode] = Field(min_length=1, description="how it may be mounted")
    storage_class: DnsName | None = Field(
        default=None, description="class it belongs to; null for none"
    )
    reclaim_policy: ReclaimPolicy = Field(
        default="Retain", description="what happens after its claim"
    )
    local: LocalSource | None = Field(default=None, description="a folder on nodes")
    nfs: NfsSource | None = Field(default=None, description="a folder of an NFS server")
    csi: CsiSource | None = Field(default=None, description="a volume of a CSI driver")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in ("local", "nfs", "csi") if getattr(self, name) is not None]
        if len(sources) != 1:
            found = " and ".join(sources) or "none"
            raise ValueError(f"needs exactly one of `local`, `nfs` and `csi`, but has {found}")
        return self


class ClaimSettings(Settings):
    """Storage that pods of the stack mount."""

    name: DnsLabel | None = Field(
        default=None, description="name in the cluster; the key by default"
    )
    size: MemoryQuantity = Field(description="size asked for")
    access_modes: list[AccessMode] = Field(
        default=["ReadWriteMany"], min_length=1, description="how pods mount it"
    )
    storage_class: DnsName | None = Field(
        default=None, description="class that provides it; null for a volume without one"
    )
    volume: DnsName | None = Field(
        default=None, description="volume of this stack that it is bound to"
    )
    protect: bool = Field(
        default=False, description="Pulumi refuses to delete the claim until this is false again"
    )
    retain: bool = Field(
        default=True, description="a claim that is removed here stays in the cluster with its data"
    )

    @model_validator(mode="after")
    def _has_an_origin(self) -> Self:
        if self.storage_class is None and self.volume is None:
            raise ValueError("needs a `storage_class` that provides it, or a `volume`")
        return self


class StorageSettings(Settings):
    """Storage classes, volumes that exist, and claims."""

    classes: dict[DnsName, StorageClassSettings] = Field(
        default={}, description="storage classes by name"
    )
    volumes: dict[DnsName, VolumeSettings] = Field(
        default={}, description="existing volumes by name"
    )
    claims: dict[DnsLabel, ClaimSettings] = Field(default={}, description="claims by logical name")
