"""Consistency checks for the settings of a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from inference.config import variable_of
from infra.serving.runtimes import RUNTIMES
from infra.serving.runtimes.runtime import LATENCY, REQUESTS, Runtime, Source
from infra.serving.runtimes.torch import Torch
from infra.settings.problems import advice_if_removed
from infra.settings.volumes import disk_problem, duplicate_paths
from kube.names import (
    API_KEYS_VOLUME,
    CACHE_PATH,
    CACHE_VOLUME,
    EXPORT_VOLUME,
    MODELS_PATH,
    MODELS_VOLUME,
    PROGRAM_PATH,
    SECRETS_PATH,
    SHM_VOLUME,
    TLS_VOLUME,
    TMP_VOLUME,
)
from kube.quantities import parse_quantity
from kube.shared_memory import shm_problem
from workload.configuration import problem_sentences

if TYPE_CHECKING:
    from infra.settings.inference.models import SourceSettings
    from infra.settings.inference.service import InferenceServiceSettings

_MODEL_SETTINGS: Final = ("job", "sweep", "run", "url", "source")
_RESERVED_VOLUMES: Final = frozenset(
    {
        SHM_VOLUME,
        TMP_VOLUME,
        MODELS_VOLUME,
        EXPORT_VOLUME,
        CACHE_VOLUME,
        TLS_VOLUME,
        API_KEYS_VOLUME,
    }
)
_RESERVED_PATHS: Final = (MODELS_PATH, CACHE_PATH, SECRETS_PATH, PROGRAM_PATH)
_TRITON_STORES: Final = ("s3://", "gs://")
_MULTI_GPU_SHM: Final = "1Gi"
"""Minimum size of /dev/shm in pods with several GPUs, whose processes communicate through it."""


def problems(service: InferenceServiceSettings) -> Iterator[str]:
    """Yield each problem in the settings of a service, with a fix."""
    yield from _model_problems(service)
    yield from _model_name_problems(service)
    if service.autoscaling is not None and service.replicas is not None:
        yield "sets both replicas and autoscaling: remove one of them"
    if service.max_unavailable >= max(service.min_replicas, 2):
        yield (
            f"sets max_unavailable to {service.max_unavailable}, but the minimum number of "
            f"replicas is {service.min_replicas}, so a node drain may stop all of them: "
            "set a smaller value"
        )
    if problem := shm_problem(service.shm, service.memory):
        yield problem
    yield from _access_problems(service)
    yield from _variable_problems(service)
    yield from _volume_problems(service)
    download = service.fetch.size if _has_download_to_node(service) else None
    if problem := disk_problem(service.ephemeral_storage, service.volumes, download):
        yield problem
    for path, server in service.versions.items():
        yield from _server_problems(service, server, path)
    yield from _runtime_problems(service)
    yield from _progress_problems(service)
    yield from _promotion_problems(service)
    yield from _rollback_problems(service)


def source_of(run: str | None, url: str | None, source: SourceSettings | None) -> Source | None:
    """Return the kind of model source that is configured, or None."""
    if run is not None:
        return "run"
    if url is not None:
        return "url"
    if source is None:
        return None
    if source.claim is not None:
        return "claim"
    if source.hub is not None:
        return "hub"
    return "image" if source.artifact is None else "artifact"


def _model_problems(service: InferenceServiceSettings) -> Iterator[str]:
    models = [name for name in _MODEL_SETTINGS if getattr(service, name) is not None]
    if len(models) != 1:
        sources = " and ".join(models) or "none of them"
        yield (
            "must set exactly one of `run`, `url` and `source` (or, in the platform's stack, "
            f"`job` or `sweep`), but sets {sources}"
        )
        return
    canary = service.canary
    runtime = RUNTIMES[service.runtime]
    run = service.job or service.sweep or service.run
    kinds = {"": source_of(run, service.url, service.source)}
    if canary is not None and (kind := source_of(canary.run, canary.url, canary.source)):
        kinds["canary."] = kind
    for path, kind in kinds.items():
        if kind is not None and kind not in runtime.sources:
            yield (
                f"sets {path}{kind} with the {service.runtime} runtime, which supports only "
                f"{', '.join(sorted(runtime.sources))} (run also stands for job and sweep; "
                "claim, hub, artifact and image are keys of `source`)"
            )
    for url in (service.url, canary.url if canary else None):
        if url is not None and service.runtime == "triton" and not url.startswith(_TRITON_STORES):
            yield f"sets url to {url}, but Triton reads only s3:// and gs:// URLs: use one of these"
    fetches = "url" in kinds.values() or _has_download(service)
    if service.model_fields_set & {"fetch"} and not fetches:
        yield "sets fetch, but has nothing to download: set url or source, or remove fetch"
    if service.runtime != "torch" and any(source.download for source in _sources(service)):
        yield (
            f"sets source.download with the {service.runtime} runtime, whose image contains no "
            "downloader: remove source.download to use an image volume instead"
        )
    if service.runtime != "torch" and service.fetch.cache is not None:
        yield (
            f"sets fetch.cache with the {service.runtime} runtime, which downloads the model "
            "itself: remove fetch.cache"
        )
    for name in ("env", "env_from"):
        if service.runtime != "torch" and getattr(service.fetch, name):
            yield (
                f"sets fetch.{name} with the {service.runtime} runtime, which downloads the model "
                f"itself: set {name} instead"
            )
    digests = [service.digest, canary.digest if canary else None]
    if service.runtime != "torch" and any(digests):
        yield (
            f"sets digest with the {service.runtime} runtime, which does not check it: remove "
            "digest, and pin the model with source.artifact or source.hub.revision"
        )


def _model_name_problems(service: InferenceServiceSettings) -> Iterator[str]:
    kind = RUNTIMES[service.runtime]
    if not service.model or "model_name" not in kind.model_fields:
        return
    try:
        kind.model_validate({"model_name": service.model})
    except ValidationError as error:
        sentences = "; ".join(problem_sentences(error, {"model_name": "model"}))
        yield f"has an invalid `model`: {sentences}"


def _has_download(service: InferenceServiceSettings) -> bool:
    return any(source.hub is not None or source.download for source in _sources(service))


def _has_download_to_node(service: InferenceServiceSettings) -> bool:
    """Return True if pods of the service or its canary download the model to an `emptyDir`."""
    urls = (service.url, service.canary.url if service.canary else None)
    return (service.runtime == "torch" and any(urls)) or any(
        source.download or (source.hub is not None and source.hub.cache is None)
        for source in _sources(service)
    )


def _sources(service: InferenceServiceSettings) -> list[SourceSettings]:
    sources = [service.source, service.canary.source if service.canary else None]
    return [source for source in sources if source is not None]


def _access_problems(service: InferenceServiceSettings) -> Iterator[str]:
    if service.canary is not None and service.route is None:
        yield "has a canary, but no route to split the requests: set route"
    if service.route is not None and service.tls is not None:
        yield (
            "sets both tls and route, but TLS is terminated at the gateway, which sends plain HTTP "
            "to the pods: remove tls"
        )
    for name in ("tls", "api_keys"):
        if service.runtime != "torch" and getattr(service, name) is not None:
            yield (
                f"sets {name}, which the stack does not configure for the {service.runtime} "
                "runtime: remove it, and use a gateway instead"
            )


def _variable_problems(service: InferenceServiceSettings) -> Iterator[str]:
    for name in sorted(service.env.keys() & service.env_from.keys()):
        yield f"sets {name} in both env and env_from: set it in one of them"
    if service.runtime != "torch":
        return
    # The TLS variables are reserved even without `tls`, because the protocol of the probes and of
    # the service URL depends on `tls`.
    unmanaged = {"host"}
    if service.api_keys is None:
        unmanaged.add("api_keys_file")
    if not (service.digest or (service.canary and service.canary.digest)):
        unmanaged.add("model_sha256")
    determined = {
        variable_of(field): key for field, key in Torch.managed.items() if field not in unmanaged
    }
    for path in ("env", "env_from"):
        for name in sorted(determined.keys() & getattr(service, path).keys()):
            # `env_from` contains references instead of values.
            value = f" to {service.env[name]!r}" if path == "env" else ""
            yield (
                f"sets {path}.{name}{value}, but the stack determines this variable: remove "
                f"{path}.{name}, and set {determined[name]}"
            )


def _volume_problems(service: InferenceServiceSettings) -> Iterator[str]:
    for name, volume in service.volumes.items():
        if name in _RESERVED_VOLUMES:
            yield f"sets volumes.{name}, a name that is reserved in every pod: choose another"
        if f"{volume.path.rstrip('/')}/".startswith(tuple(f"{path}/" for path in _RESERVED_PATHS)):
            yield (
                f"sets volumes.{name}.path to {volume.path}, which is reserved in every pod: "
                "choose another"
            )
    for path in duplicate_paths(service.volumes):
        yield f"has two volumes at {path}: use a different path for each"


def _server_problems(
    service: InferenceServiceSettings, server: Mapping[str, Any], path: str
) -> Iterator[str]:
    kind = RUNTIMES[service.runtime]
    for name in sorted(kind.managed.keys() & server.keys()):
        setting = kind.managed[name]
        if not setting:
            remedy = "leave it out"
        else:
            remedy = setting if setting.startswith("leave") else f"set {setting}"
        yield f"sets {path}.{name}, which the stack determines: {remedy}"
    names = [field.alias or name for name, field in kind.model_fields.items()]
    for name in sorted(server.keys() - names):
        if advice := advice_if_removed(f"inference.services.*.server.{name}"):
            yield f"sets {path}.{name}, which is no longer supported: {advice}"
            server = {other: server[other] for other in server if other != name}
    try:
        runtime = service.runtime_of(server)
    except ValidationError as error:
        written_as = {name: f"{path}.{name}" for name in (*names, *server)}
        sentences = "; ".join(problem_sentences(error, written_as, names))
        yield f"has an invalid `{path}`: {sentences}"
        return
    if problem := runtime.problem(service.gpus):
        yield f"has an invalid `{path}`: it {problem}"
    yield from _termination_problems(service, runtime, path)


def _termination_problems(
    service: InferenceServiceSettings, runtime: Runtime, path: str
) -> Iterator[str]:
    stop = runtime.stop_seconds
    needed = service.pre_stop_seconds + sum(stop.values())
    if needed >= service.grace_seconds:
        parts = "".join(f", {path}.{name} {seconds:g}" for name, seconds in stop.items())
        yield (
            f"takes up to {needed:g} seconds to terminate (pre_stop_seconds "
            f"{service.pre_stop_seconds}{parts}), but its pods are killed after "
            f"grace_seconds {service.grace_seconds}: increase grace_seconds, or decrease the "
            "times in parentheses"
        )


def _runtime_problems(service: InferenceServiceSettings) -> Iterator[str]:
    runtime = service.runtime_of({})
    for path, server in service.versions.items():
        ports = service.ports_of(server)
        for port in sorted({port for port in ports if ports.count(port) > 1}):
            yield (
                f"uses port {port} twice in `{path}`, but the HTTP, gRPC and metrics ports of the "
                f"{service.runtime} runtime must differ: set another port"
            )
    scaling = service.autoscaling
    by_requests = scaling is not None and scaling.requests_in_flight is not None
    if by_requests and runtime.in_flight("") is None:
        yield (
            f"sets autoscaling.requests_in_flight, but the {service.runtime} runtime has no metric "
            "for it: set server.requests_in_flight, or use autoscaling.cpu_percent instead"
        )
    if service.route is not None and service.route.grpc_hostnames:
        for path, server in service.versions.items():
            if service.runtime_of(server).endpoints.grpc_port is None:
                yield (
                    f"sets route.grpc_hostnames, but the {service.runtime} runtime has no gRPC API "
                    f"with the settings in `{path}`: remove route.grpc_hostnames"
                )
    multi_gpu = service.runtime != "torch" and service.gpus > 1
    if multi_gpu and parse_quantity(service.shm) < parse_quantity(_MULTI_GPU_SHM):
        yield (
            f"sets shm to {service.shm} for {service.gpus} GPUs, but the processes of the GPUs "
            f"communicate through /dev/shm: set at least {_MULTI_GPU_SHM}"
        )


def _progress_problems(service: InferenceServiceSettings) -> Iterator[str]:
    """Check the progress deadline, which applies only to Deployments."""
    has_deployment = any(service.runtime_of(each).nodes == 1 for each in service.versions.values())
    ready, deadline = service.min_ready_seconds, service.progress_deadline
    if has_deployment and deadline <= ready:
        yield (
            f"sets min_ready_seconds to {ready}, but progress_deadline_seconds to {deadline}, "
            f"which must be longer: set progress_deadline_seconds to at least {ready + 1}"
        )


def _promotion_problems(service: InferenceServiceSettings) -> Iterator[str]:
    canary = service.canary
    if canary is None or not canary.promote_if:
        return
    run = service.job or service.sweep or service.run
    if service.runtime != "torch" or canary.run is None or run is None:
        yield (
            "sets canary.promote_if, which compares the manifests of two runs and needs runtime "
            "torch, canary.run, and one of run, job and sweep: set these, or remove promote_if"
        )


def _rollback_problems(service: InferenceServiceSettings) -> Iterator[str]:
    canary = service.canary
    if canary is None or canary.rollback is None:
        return
    if service.route is not None and service.route.gateway is None:
        yield (
            "sets canary.rollback, which cannot change the weights of an Ingress: use "
            "route.gateway, or remove canary.rollback"
        )
    runtime, seconds = service.runtime_of({}), canary.rollback.latency_seconds
    series = {"torch": (REQUESTS, LATENCY)}.get(service.runtime, tuple(runtime.recordings))
    if REQUESTS not in series:
        yield (
            f"sets canary.rollback with the {service.runtime} runtime, which does not report "
            "failed requests: remove canary.rollback"
        )
    elif seconds is not None and LATENCY not in series:
        yield (
            f"sets canary.rollback.latency_seconds with the {service.runtime} runtime, which has "
            "no latency histogram: remove canary.rollback.latency_seconds"
        )
    elif seconds is not None and seconds >= runtime.max_latency:
        yield (
            f"sets canary.rollback.latency_seconds to {seconds:g}, which is never exceeded: the "
            f"latency histogram of the {service.runtime} runtime ends at "
            f"{runtime.max_latency:g} s; set a smaller limit"
        )
