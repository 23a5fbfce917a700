"""The Deployment or LeaderWorkerSet that runs one version of a service, and the model's source."""

import math
from dataclasses import replace
from typing import Any, Final

from infra.manifests import Manifest, compact
from infra.pods import (
    GpuNodes,
    InitContainer,
    Mount,
    Pod,
    Volume,
    additional_volumes,
    even_spread,
    pod_template,
    secret_source,
    variables_from,
)
from infra.serving.description import LEADER_LABEL, InferenceServiceArgs, Version, labels, metadata
from infra.serving.runtimes.runtime import Endpoints, Launch
from infra.serving.runtimes.torch import Torch
from infra.settings.inference.models import FetchSettings
from infra.settings.inference.scaling import RolloutSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.training.sweep import template_name
from kube.names import (
    API_KEYS_VOLUME,
    CACHE_PATH,
    CACHE_VOLUME,
    EXPORT_VOLUME,
    METRICS_PATH,
    MODELS_PATH,
    MODELS_VOLUME,
    PATH_ANNOTATION,
    PORT_ANNOTATION,
    ROLE_LABEL,
    SCHEME_ANNOTATION,
    SCRAPE_ANNOTATION,
    SECRETS_PATH,
    TLS_VOLUME,
)
from kube.quantities import parse_quantity

TLS_PATH: Final = f"{SECRETS_PATH}/{TLS_VOLUME}"
API_KEYS_PATH: Final = f"{SECRETS_PATH}/{API_KEYS_VOLUME}"
_STARTUP_PERIOD_SECONDS: Final = 2
_BACKENDS_WITH_ARTIFACT: Final = ("pt2", "int8", "pruned")
"""Backends that load an artifact of the export. The artifact's kind is the backend's name."""
_FETCHED_PATH: Final = f"{MODELS_PATH}/export"


def workload(args: InferenceServiceArgs, version: Version, annotations: dict[str, str]) -> Manifest:
    """Return the Deployment, or a LeaderWorkerSet if a replica has several pods.

    By default, an update adds a replica before it removes one. A Deployment also waits until the
    new pod has been ready for `min_ready_seconds`.
    """
    build = _leader_worker_set if version.runtime.nodes > 1 else _deployment
    # None if an autoscaler sets the number of replicas.
    spec = {"replicas": version.replicas, **build(args, version)}
    return {
        **version.workload,
        "metadata": metadata(args, version, annotations),
        "spec": compact(spec),
    }


def pods(workload: Manifest) -> Manifest:
    """Return the part of a workload's specification that describes its pods."""
    spec: Manifest = workload["spec"]
    found: Manifest = spec.get("template") or spec["leaderWorkerTemplate"]
    return found


def _deployment(args: InferenceServiceArgs, version: Version) -> Manifest:
    settings = args.service
    return {
        "minReadySeconds": settings.min_ready_seconds,
        "progressDeadlineSeconds": settings.progress_deadline,
        "revisionHistoryLimit": 3,
        "strategy": {"type": "Recreate"}
        if settings.rollout.recreate
        else {"type": "RollingUpdate", "rollingUpdate": _rolling_update(settings.rollout)},
        "selector": {"matchLabels": version.selector},
        "template": pod_template(_pod(args, version)),
    }


def _leader_worker_set(args: InferenceServiceArgs, version: Version) -> Manifest:
    """Return the specification of a LeaderWorkerSet, whose leaders answer the requests.

    If a pod fails after all pods of its replica have started, all pods of this replica are
    replaced, because no pod can continue without the failed pod.
    """
    pod = _pod(args, version)
    leader = replace(pod, labels={**pod.labels, **LEADER_LABEL})
    worker = replace(
        pod,
        command=[*pod.command, *version.runtime.worker_arguments],
        labels={**pod.labels, ROLE_LABEL: "worker"},
        annotations={SCRAPE_ANNOTATION: "false"},
        ports={},
        probes={},
    )
    # LeaderWorkerSet has no `Recreate` strategy, so allow all replicas to be unavailable.
    update = _rolling_update(args.service.rollout)
    if args.service.rollout.recreate:
        update = {"maxUnavailable": "100%", "maxSurge": 0}
    return {
        "startupPolicy": "LeaderCreated",
        # By default, the controller creates a headless Service named after the LeaderWorkerSet.
        # The Service that receives requests already uses that name.
        "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": update},
        "leaderWorkerTemplate": {
            "size": version.runtime.nodes,
            "restartPolicy": "RecreateGroupAfterStart",
            "leaderTemplate": pod_template(leader),
            "workerTemplate": pod_template(worker),
        },
    }


def _rolling_update(rollout: RolloutSettings) -> Manifest:
    """Return the limits of a rolling update. Without a surge, one replica may be unavailable."""
    return {"maxUnavailable": 0 if rollout.surge else 1, "maxSurge": rollout.surge}


def launch(args: InferenceServiceArgs, version: Version) -> Launch:
    """Return the launch parameters that the stack sets for a version's server."""
    settings = args.service
    hub = version.source.hub if version.source is not None else None
    return Launch(
        model=args.model,
        path=model_path(version),
        port=settings.port,
        gpus=settings.gpus,
        cpus=math.ceil(parse_quantity(settings.cpu)),
        revision=hub.revision if hub is not None else None,
        digest=version.digest,
        tls=TLS_PATH if settings.tls is not None else None,
        api_keys=f"{API_KEYS_PATH}/{settings.api_keys.key}" if settings.api_keys else None,
    )


def _pod(args: InferenceServiceArgs, version: Version) -> Pod:
    settings = args.service
    nodes = args.gpu_nodes
    values = launch(args, version)
    endpoints = version.runtime.endpoints
    ports = {"http": settings.port, "grpc": endpoints.grpc_port, "metrics": endpoints.metrics_port}
    sweep = args.service.sweep if version.winner is not None else None
    name_variables = {"RUN_NAME": version.run, "SWEEP_NAME": sweep and template_name(sweep)}
    return Pod(
        container="inference",
        image=version.image,
        command=version.runtime.command(values),
        cpu=settings.cpu,
        memory=settings.memory,
        shm=settings.shm,
        disk=settings.ephemeral_storage,
        gpus=settings.gpus,
        gpu_nodes=GpuNodes(
            resource=settings.gpu_resource or nodes.resource,
            node_selector=nodes.node_selector,
            tolerations=nodes.tolerations,
            runtime_class=nodes.runtime_class,
        ),
        service_account=args.service_account,
        grace_seconds=settings.grace_seconds,
        pre_stop_seconds=settings.pre_stop_seconds,
        labels={**settings.labels, **labels(version)},
        annotations=_annotations(settings, endpoints),
        env={
            **compact(name_variables),
            **version.runtime.environment(values),
            **model_variables(version),
            **variables_from(settings.env_from),
            **settings.env,
        },
        init=[*promotion_containers(args, version), *fetch_containers(args, version)],
        mounts=[*model_mounts(args, version), *_claim_mounts(args)],
        volumes=[*model_volumes(version, settings.fetch), *_service_volumes(settings)],
        ports={name: port for name, port in ports.items() if port is not None},
        probes=_probes(settings, endpoints, args.model),
        node_selector=settings.node_selector,
        tolerations=[toleration.manifest for toleration in settings.tolerations],
        spread=even_spread(version.selector) if settings.spread else (),
        priority_class=settings.priority_class,
    )


def _annotations(settings: InferenceServiceSettings, endpoints: Endpoints) -> dict[str, str]:
    """Return the annotations that override the default metrics endpoint."""
    if endpoints.metrics is None:
        return {SCRAPE_ANNOTATION: "false"}
    annotations = {SCHEME_ANNOTATION: "https"} if settings.tls else {}
    if endpoints.metrics_port is not None:
        annotations[PORT_ANNOTATION] = str(endpoints.metrics_port)
    if endpoints.metrics != METRICS_PATH:
        annotations[PATH_ANNOTATION] = endpoints.metrics
    return annotations


def _claim_mounts(args: InferenceServiceArgs) -> list[Mount]:
    return [
        Mount(
            name=name, claim=args.claims[volume.claim], path=volume.path, read_only=volume.read_only
        )
        for name, volume in args.service.volumes.items()
        if volume.claim is not None
    ]


def _service_volumes(settings: InferenceServiceSettings) -> list[Volume]:
    mounted = {
        (TLS_VOLUME, TLS_PATH): settings.tls,
        (API_KEYS_VOLUME, API_KEYS_PATH): settings.api_keys,
    }
    secrets = [
        Volume(name=name, source=secret_source(access.secret), path=path, read_only=True)
        for (name, path), access in mounted.items()
        if access is not None
    ]
    return [*secrets, *additional_volumes(settings.volumes)]


def _probes(
    settings: InferenceServiceSettings, endpoints: Endpoints, model: str
) -> dict[str, Manifest]:
    scheme = {"scheme": "HTTPS"} if settings.tls else {}

    def probe(path: str, period: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": endpoints.probe_port, **scheme},
            "periodSeconds": period,
            "timeoutSeconds": 2,
            "failureThreshold": failures,
        }

    startup_failures = math.ceil(settings.startup_seconds / _STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": probe(endpoints.live, _STARTUP_PERIOD_SECONDS, startup_failures),
        "livenessProbe": probe(endpoints.live, 10, 3),
        "readinessProbe": probe(endpoints.ready.replace("{model}", model), 2, 3),
    }


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
    """Return the init container that checks the conditions for serving the canary.

    The container compares the metrics of the canary's export and the stable version's export. The
    list is empty if the version is not a canary or has no conditions.
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
