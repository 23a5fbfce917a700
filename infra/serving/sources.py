"""Model sources for pods: claims, volumes and downloaded exports."""

from typing import Any, Final

from infra.pods import InitContainer, Mount, Volume, variables_from
from infra.serving.description import InferenceServiceArgs, Version
from infra.serving.runtimes.torch import Torch
from infra.settings.inference import FetchSettings
from kube.names import CACHE_PATH, CACHE_VOLUME, EXPORT_VOLUME, MODELS_PATH, MODELS_VOLUME
from kube.quantities import parse_quantity

_BACKENDS_WITH_ARTIFACT: Final = ("pt2", "int8", "pruned")
"""Backends that load an artifact of the export. The artifact's kind is the backend's name."""
_FETCHED_PATH: Final = f"{MODELS_PATH}/export"


def model_path(version: Version) -> str:
    """Return the model's directory in the container, its URL, or its name on the hub."""
    source = version.source
    if (run := version.run or version.winner) is not None:
        return f"{MODELS_PATH}/{run}/{version.runtime.export}"
    if _fetched_url(version) is not None:
        return _FETCHED_PATH
    if version.url is not None:
        return version.url
    if source is None or source.image:
        return MODELS_PATH
    if source.hub is not None:
        return source.hub.model
    if source.claim is not None and source.claim.path:
        return f"{MODELS_PATH}/{source.claim.path}"
    return MODELS_PATH


def model_mounts(args: InferenceServiceArgs, version: Version) -> list[Mount]:
    """Return the mount of the claim that contains the run, model or hub cache, if there is one."""
    source = version.source
    name = args.service.checkpoints if version.run or version.winner else None
    if source is not None:
        name = source.claim_name
    if name is None:
        return []
    cached = source is not None and source.hub is not None
    claim = args.claims[name]
    return [Mount(name=MODELS_VOLUME, claim=claim, path=MODELS_PATH, read_only=not cached)]


def model_volumes(version: Version, fetch: FetchSettings) -> list[Volume]:
    """Return the volume for a downloaded model or an OCI artifact."""
    source = version.source
    if _fetched_url(version) is not None:
        return [_volume({"emptyDir": {"sizeLimit": fetch.size}}, read_only=True)]
    if source is not None and source.artifact is not None:
        artifact = {"image": {"reference": source.artifact, "pullPolicy": "IfNotPresent"}}
        return [_volume(artifact, read_only=True)]
    if source is not None and source.hub is not None and source.hub.cache is None:
        return [_volume({"emptyDir": {"sizeLimit": fetch.size}}, read_only=False)]
    return []


def _volume(source: dict[str, Any], *, read_only: bool) -> Volume:
    return Volume(name=EXPORT_VOLUME, source=source, path=MODELS_PATH, read_only=read_only)


def model_variables(version: Version) -> dict[str, Any]:
    """Return the variables that set the cache directory of Hugging Face libraries."""
    if version.source is None or version.source.hub is None:
        return {}
    return {"HF_HOME": MODELS_PATH}


def fetch_containers(args: InferenceServiceArgs, version: Version) -> list[InitContainer]:
    """Return the init container that downloads the export and verifies it against its manifest.

    Only this container mounts the cache and gets the credentials of the object store or registry.
    """
    url, fetch = _fetched_url(version), args.service.fetch
    if url is None or not isinstance(version.runtime, Torch):
        return []
    command = ["python3", "-m", "inference.fetch", url, _FETCHED_PATH]
    if version.digest is not None:
        command.append(f"--sha256={version.digest}")
    if version.runtime.backend in _BACKENDS_WITH_ARTIFACT:
        command.append(f"--artifact={version.runtime.backend}")
    claims: list[Mount] = []
    if fetch.cache is not None:
        claim = args.claims[fetch.cache.claim]
        claims.append(Mount(name=CACHE_VOLUME, claim=claim, path=CACHE_PATH))
        capacity = int(parse_quantity(fetch.cache.size))
        command += [f"--cache={CACHE_PATH}", f"--cache-bytes={capacity}"]
    return [
        InitContainer(
            name="fetch",
            command=command,
            env={**variables_from(fetch.env_from), **fetch.env},
            mounts={EXPORT_VOLUME: MODELS_PATH},
            claims=claims,
        )
    ]


def promotion_containers(args: InferenceServiceArgs, version: Version) -> list[InitContainer]:
    """Return the init container that checks the conditions for serving the canary, if any.

    The container compares the metrics of the canary's export and the stable version's export.
    """
    canary = args.service.canary
    if canary is None or not canary.promote_if or version.name == args.stable.name:
        return []
    conditions = [f"{metric} {comparison}" for metric, comparison in canary.promote_if.items()]
    exports = [model_path(version), model_path(args.stable)]
    return [
        InitContainer(
            name="promote",
            command=["python3", "-m", "inference.promote", *exports, *conditions],
            mounts={MODELS_VOLUME: MODELS_PATH},
        )
    ]


def _fetched_url(version: Version) -> str | None:
    """Return the URL from which an init container downloads the export, or None.

    Third-party servers download the model from the URL themselves.
    """
    if not isinstance(version.runtime, Torch):
        return None
    source = version.source
    if source is not None and source.download:
        return f"oci://{source.artifact}"
    return version.url
