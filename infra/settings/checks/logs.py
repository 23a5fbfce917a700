"""What keeps failed pods' last lines can be where the runs are."""

from collections.abc import Iterator

from infra.settings.checks.registry import check, choice
from infra.settings.images import ImagesSettings
from infra.settings.logs import LogsSettings
from infra.settings.problems import full_key
from infra.settings.storage import StorageSettings


@check("logs", "images", "storage")
def the_recorder_finds_image_and_claims(
    logs: LogsSettings, images: ImagesSettings, storage: StorageSettings
) -> Iterator[str]:
    """Its image is declared, and its claims are such as several nodes may write to."""
    if logs.recorder is None:
        return
    here, name = full_key("logs", "recorder", "image"), logs.recorder.image
    if name not in images.workloads:
        table = full_key("images", "workloads")
        known = choice(images.workloads)
        yield f"{here} is {name!r}, which is not declared under {table}: {known}."
    for number, key in enumerate(logs.recorder.claims):
        here, claim = full_key("logs", "recorder", "claims", number), storage.claims.get(key)
        if claim is None:
            table = full_key("storage", "claims")
            known = choice(storage.claims)
            yield f"{here} is {key!r}, which is not declared under {table}: {known}."
        elif "ReadWriteMany" not in claim.access_modes:
            modes = ", ".join(claim.access_modes)
            yield (
                f"{here} is {key!r}, whose access_modes are {modes}: the recorder on one node "
                "would keep trainings on others from it. Write a claim that is ReadWriteMany, or "
                "no recorder."
            )
