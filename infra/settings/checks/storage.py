"""Checks that claims match their volumes and can be mounted by their pods."""

from collections.abc import Iterator, Mapping

from infra.settings.inference import InferenceSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.problems import choice, either, full_key, job_key, service_key
from infra.settings.storage import StorageSettings
from infra.settings.training import TrainingSettings
from infra.settings.training.job import TrainingJobSettings
from infra.settings.volumes import VolumeSettings
from kube.quantities import parse_quantity


def claims_fit_their_volumes(storage: StorageSettings) -> Iterator[str]:
    """Check that the volume of each claim is declared and matches the claim.

    No two claims may use the same volume.
    """
    owners: dict[str, str] = {}
    for key, claim in storage.claims.items():
        if claim.volume is None:
            continue
        here = full_key("storage", "claims", key)
        volume = storage.volumes.get(claim.volume)
        if volume is None:
            yield (
                f"{here}.volume is {claim.volume!r}, which is not declared under "
                f"{full_key('storage', 'volumes')}: {choice(storage.volumes)}."
            )
            continue
        if claim.volume in owners:
            yield (
                f"{here}.volume is {claim.volume!r}, which claim {owners[claim.volume]!r} already "
                "uses: a volume can be bound to only one claim."
            )
        owners[claim.volume] = key
        if parse_quantity(claim.size) > parse_quantity(volume.capacity):
            yield (
                f"{here}.size is {claim.size}, more than the {volume.capacity} of volume "
                f"{claim.volume!r}."
            )
        if missing := sorted(set(claim.access_modes) - set(volume.access_modes)):
            yield (
                f"{here}.access_modes contains {', '.join(missing)}, which volume "
                f"{claim.volume!r} does not offer: it offers {', '.join(volume.access_modes)}."
            )
        if claim.storage_class != volume.storage_class:
            yield (
                f"{here}.storage_class is {claim.storage_class!r}, but volume {claim.volume!r} has "
                f"{volume.storage_class!r}: set the same storage_class in both."
            )


def claims_can_be_mounted_by_their_pods(
    training: TrainingSettings, inference: InferenceSettings, storage: StorageSettings
) -> Iterator[str]:
    """Check that the access modes of each claim suit the pods that mount it.

    A claim that several pods mount needs an access mode for several nodes, and a claim that pods
    write to needs a writable mode. Also check that model caches are not larger than their claims.
    """
    for key, job in training.all_jobs.items():
        pods = "several pods" if job.has_several_pods or key not in training.jobs else "one pod"
        for field, name, read_only in _job_claims(job):
            yield from _mode_problems(job_key(key, *field), name, read_only, pods, storage)
    for key, service in inference.services.items():
        for field, name, read_only in _service_claims(service):
            path = service_key(key, *field)
            yield from _mode_problems(
                path, name, read_only, _describe_pods(service, field), storage
            )
        cache = service.fetch.cache
        claim = storage.claims.get(cache.claim) if cache else None
        if cache and claim and parse_quantity(cache.size) > parse_quantity(claim.size):
            yield (
                f"{service_key(key, 'fetch.cache.size')} is {cache.size}, more than the "
                f"{claim.size} of claim {cache.claim!r}."
            )


def _describe_pods(service: InferenceServiceSettings, field: tuple[str, ...]) -> str:
    """Describe the number of pods that mount a claim at the same time."""
    maximum = service.canary_pods if field == ("canary", "source") else service.max_pods
    return f"up to {maximum} pods" if maximum > 1 else "one pod"


def _mode_problems(
    path: str, name: str, read_only: bool, pods: str, storage: StorageSettings
) -> Iterator[str]:
    suitable = ["ReadWriteMany", *(["ReadOnlyMany"] if read_only else [])]
    if pods == "one pod":
        suitable += ["ReadWriteOnce", "ReadWriteOncePod"]
    claim = storage.claims.get(name)
    if claim is not None and not {*suitable} & {*claim.access_modes}:
        verb = "mounts" if pods == "one pod" else "mount"
        yield (
            f"{path} is {name!r}, whose access_modes are {', '.join(claim.access_modes)}, but "
            f"{pods} {verb} it{'' if read_only else ' and may write to it'}: the claim needs "
            f"{either(suitable)}."
        )


_MountedClaim = tuple[tuple[str, ...], str, bool]
"""A setting, the claim that it names, and True if all pods mount the claim read-only."""


def _job_claims(job: TrainingJobSettings) -> Iterator[_MountedClaim]:
    yield ("checkpoints",), job.checkpoints, False
    if job.datasets is not None:
        read_only = not any(step.writes_datasets for step in job.steps.values())
        yield ("datasets",), job.datasets, read_only
    if job.notebook is not None:
        yield ("notebook", "home"), job.notebook.home, False
    yield from _volume_claims(job.volumes)


def _service_claims(service: InferenceServiceSettings) -> Iterator[_MountedClaim]:
    canary = service.canary
    sources = {"source": service.source, "canary.source": canary.source if canary else None}
    caches = {key for key, source in sources.items() if source is not None and source.hub}
    for key, name in service.claims.items():
        yield tuple(key.split(".")), name, key not in {*caches, "fetch.cache.claim"}
    yield from _volume_claims(service.volumes)


def _volume_claims(volumes: Mapping[str, VolumeSettings]) -> Iterator[_MountedClaim]:
    for name, volume in volumes.items():
        if volume.claim is not None:
            yield ("volumes", name, "claim"), volume.claim, volume.read_only
