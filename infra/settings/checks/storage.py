"""Checks that claims match their volumes and can be mounted by their pods."""

from collections.abc import Iterator

from infra.settings.inference import InferenceSettings
from infra.settings.problems import choice, full_key, job_key, service_key
from infra.settings.storage import StorageSettings
from infra.settings.training.job import TrainingJobSettings
from infra.settings.training.settings import TrainingSettings
from kube.quantities import parse_quantity


def claims_fit_their_volumes(storage: StorageSettings) -> Iterator[str]:
    """Check that the `volume` of each claim is declared, and that its properties match the claim.

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
    """Check that each claim that several pods mount has an access mode for several nodes.

    Also check that model caches are not larger than their claims.
    """
    for key, job in training.all_jobs.items():
        claim = storage.claims.get(job.checkpoints)
        if claim is None:
            continue
        multiple_pods = job.several_pods or key not in training.jobs
        if multiple_pods and "ReadWriteMany" not in claim.access_modes:
            yield (
                f"{job_key(key, 'checkpoints')} is {job.checkpoints!r}, whose access_modes are "
                f"{', '.join(claim.access_modes)}, but several pods mount it for checkpoints: it "
                "needs ReadWriteMany."
            )
        yield from _additional_claims(key, job, storage)
    for key, service in inference.services.items():
        cache = service.fetch.cache
        for name, fitting in (
            (service.model_claim, ("ReadWriteMany", "ReadOnlyMany")),
            (cache.claim if cache else None, ("ReadWriteMany",)),
        ):
            claim = storage.claims.get(name or "")
            if claim is None or set(fitting) & set(claim.access_modes):
                continue
            if service.max_pods > 1:
                yield (
                    f"{service_key(key)} can have up to {service.max_pods} pods, but claim "
                    f"{name!r} is {', '.join(claim.access_modes)}: several pods need "
                    f"{' or '.join(fitting)}."
                )
        claim = storage.claims.get(cache.claim) if cache else None
        if cache and claim and parse_quantity(cache.size) > parse_quantity(claim.size):
            yield (
                f"{service_key(key, 'fetch.cache.size')} is {cache.size}, more than the "
                f"{claim.size} of claim {cache.claim!r}."
            )


def _additional_claims(
    key: str, job: TrainingJobSettings, storage: StorageSettings
) -> Iterator[str]:
    for name, volume in job.volumes.items():
        claim = storage.claims.get(volume.claim or "")
        if claim is None or not job.several_pods:
            continue
        fitting = {"ReadWriteMany", "ReadOnlyMany"} if volume.read_only else {"ReadWriteMany"}
        if not fitting & set(claim.access_modes):
            yield (
                f"{job_key(key, 'volumes', name, 'claim')} is {volume.claim!r}, whose access_modes "
                f"are {', '.join(claim.access_modes)}, but several pods mount it: it needs "
                f"{' or '.join(sorted(fitting))}."
            )
