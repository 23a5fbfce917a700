"""What stands in Secrets and ConfigMaps, as pods refer to it: pure."""

from collections.abc import Mapping
from typing import Any

from infra.manifests import Manifest
from infra.pods import Volume
from infra.settings.jobs.mounts import ReferenceSettings, VolumeSettings


def variables_from(references: Mapping[str, ReferenceSettings]) -> dict[str, Any]:
    """Environment variables by name, each with the place of its value."""

    def value(reference: ReferenceSettings) -> Manifest:
        source = "configMapKeyRef" if reference.secret is None else "secretKeyRef"
        name = reference.secret or reference.config_map
        return {"valueFrom": {source: {"name": name, "key": reference.key}}}

    return {name: value(reference) for name, reference in references.items()}


def additional_volumes(volumes: Mapping[str, VolumeSettings]) -> list[Volume]:
    """All but claims: Secrets, ConfigMaps and scratch folders."""
    return [
        Volume(
            name=name,
            source=_source(volume),
            path=volume.path,
            read_only=volume.scratch is None,
        )
        for name, volume in volumes.items()
        if volume.claim is None
    ]


def secret_source(name: str) -> Manifest:
    """The volume of a Secret, which only the pod's own group may read."""
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def _source(volume: VolumeSettings) -> Manifest:
    if volume.secret is not None:
        return secret_source(volume.secret)
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"emptyDir": {"sizeLimit": volume.scratch}}
