"""Storage classes, existing volumes and the workloads' claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pulumi

from infra.component import Component
from infra.manifests import ADOPTED, Manifest, compact
from infra.settings import StackSettings
from infra.settings.storage import (
    PROVISIONERS,
    ClaimSettings,
    StorageClassSettings,
    StorageSettings,
    VolumeSettings,
)


@dataclass(frozen=True, kw_only=True)
class StorageArgs:
    """Storage settings, and the namespace for the claims."""

    storage: StorageSettings
    namespace: str

    @classmethod
    def of(cls, settings: StackSettings) -> Self:
        """Build the arguments from the stack's settings."""
        return cls(storage=settings.storage, namespace=settings.tenancy.namespace)


class Storage(Component):
    """Storage classes, volumes and claims.

    When the component is ready, claims are bound unless the binding mode of their class is
    WaitForFirstConsumer.
    """

    claims: dict[str, str]

    def __init__(
        self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Storage", name, opts)
        settings = args.storage
        classes = {
            key: self.create(f"{name}-class-{key}", storage_class(key, value))
            for key, value in settings.classes.items()
        }
        owners = {claim.volume: key for key, claim in settings.claims.items() if claim.volume}
        volumes = {
            key: self.create(
                f"{name}-volume-{key}",
                volume(key, value, _claim_ref(args, owners.get(key))),
                # A volume cannot be deleted while a retained claim is bound to it, so the volume
                # is retained as well, even if the claim has been removed from the stack.
                self.options(
                    retain=key not in owners or settings.claims[owners[key]].retain,
                    ignore=None if key in owners else ["spec.claimRef"],
                ),
            )
            for key, value in settings.volumes.items()
        }
        self.claims = {key: value.name or key for key, value in settings.claims.items()}
        for key, value in settings.claims.items():
            dependencies = [classes.get(value.storage_class or ""), volumes.get(value.volume or "")]
            options = self.options(
                after=[dependency for dependency in dependencies if dependency],
                protect=value.protect,
                retain=value.retain,
            )
            claim_name = self.claims[key]
            # The resource is named after the claim, because a new key for the same claim would
            # otherwise delete it. Earlier versions named the resource after the key.
            if key not in self.claims.values():
                options.aliases = [pulumi.Alias(name=f"{name}-claim-{key}")]
            manifest = claim(claim_name, args.namespace, value)
            created = self.create(f"{name}-claim-{claim_name}", manifest, options)
            warning = partial(_warn_if_deleted, created)
            created.metadata.recover(lambda _: {}).apply(warning)
        self.register_outputs({"claims": self.claims})


def _warn_if_deleted(resource: pulumi.Resource, metadata: Mapping[str, Any]) -> None:
    """Log a warning if a claim is being deleted and remains only while pods mount it."""
    if metadata.get("deletionTimestamp"):
        pulumi.log.warn(
            f"The claim {metadata['name']!r} is being deleted: it disappears once all pods that "
            "mount it are deleted, including finished pods. The deletion cannot be canceled: back "
            "up the data now, and then create the claim again (docs/recovery.md).",
            resource,
        )


def _claim_ref(args: StorageArgs, key: str | None) -> Manifest | None:
    if key is None:
        return None
    name = args.storage.claims[key].name or key
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": args.namespace,
        "name": name,
    }


def storage_class(name: str, settings: StorageClassSettings) -> Manifest:
    """Return a storage class for CephFS CSI, NFS CSI, local volumes or another provisioner."""
    return compact(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": settings.provisioner or PROVISIONERS[settings.kind],
            "parameters": settings.parameters,
            "mountOptions": settings.mount_options or None,
            "reclaimPolicy": settings.reclaim_policy,
            "volumeBindingMode": settings.binding,
            "allowVolumeExpansion": settings.expandable,
        }
    )


def volume(name: str, settings: VolumeSettings, claim_ref: Manifest | None) -> Manifest:
    """Return a PersistentVolume for existing storage; `claim_ref` reserves it for one claim."""
    spec: dict[str, Any] = {
        "capacity": {"storage": settings.capacity},
        "accessModes": settings.access_modes,
        "persistentVolumeReclaimPolicy": settings.reclaim_policy,
        "storageClassName": settings.storage_class or "",
        "claimRef": claim_ref,
    }
    if settings.local is not None:
        expressions = [
            {"key": key, "operator": "In", "values": values}
            for key, values in settings.local.nodes.items()
        ]
        spec["local"] = {"path": settings.local.path}
        spec["nodeAffinity"] = {
            "required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        }
    if settings.nfs is not None:
        spec["nfs"] = {"server": settings.nfs.server, "path": settings.nfs.path}
    if settings.csi is not None:
        spec["csi"] = compact(
            {
                "driver": settings.csi.driver,
                "volumeHandle": settings.csi.handle,
                "volumeAttributes": settings.csi.attributes,
            }
        )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": dict(ADOPTED)},
        "spec": compact(spec),
    }


def claim(name: str, namespace: str, settings: ClaimSettings) -> Manifest:
    """Return a claim for the workloads."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(ADOPTED)},
        "spec": compact(
            {
                "accessModes": settings.access_modes,
                "storageClassName": settings.storage_class or "",
                "volumeName": settings.volume,
                "resources": {"requests": {"storage": settings.size}},
            }
        ),
    }
