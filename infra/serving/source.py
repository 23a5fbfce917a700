"""Where a version's export comes from: a claim of the stack, or an object store."""

from typing import Final

from infra.pods import InitContainer, Mount, Volume
from infra.references import variables_from
from infra.serving.description import Serving, Version
from infra.settings.services.source import FetchSettings
from kube.names import EXPORT_VOLUME, MODELS_PATH, MODELS_VOLUME

_OTHER_FORMS: Final = ("pt2", "int8", "pruned")
"""Backends that compute another file of the export than the weights."""


def export_path(version: Version) -> str:
    """The folder with the manifest, in the container."""
    return f"{MODELS_PATH}/{version.run}/export" if version.url is None else f"{MODELS_PATH}/export"


def model_mounts(serving: Serving, version: Version) -> list[Mount]:
    """The claim with all runs; nothing where the export is fetched."""
    if version.url is not None:
        return []
    claim = serving.claims[serving.service.checkpoints]
    return [Mount(name=MODELS_VOLUME, claim=claim, path=MODELS_PATH, read_only=True)]


def model_volumes(version: Version, fetch: FetchSettings) -> list[Volume]:
    """Room for what is fetched."""
    if version.url is None:
        return []
    source = {"emptyDir": {"sizeLimit": fetch.size}}
    return [Volume(name=EXPORT_VOLUME, source=source, path=MODELS_PATH, read_only=True)]


def fetching(version: Version, fetch: FetchSettings) -> list[InitContainer]:
    """Gets the export by its address and compares it with its manifest, before the server starts.

    The keys of the object store are known to this container alone.
    """
    if version.url is None:
        return []
    command = ["python3", "-m", "inference.fetch", version.url, export_path(version)]
    if version.digest is not None:
        command.append(f"--sha256={version.digest}")
    if version.server.get("backend") in _OTHER_FORMS:
        command.append(f"--artifact={version.server['backend']}")
    return [
        InitContainer(
            name="fetch",
            command=command,
            env={**variables_from(fetch.env_from), **fetch.env},
            mounts={EXPORT_VOLUME: MODELS_PATH},
        )
    ]
