"""Deployment of one version: how its pods start, get their model and terminate."""

import math
from typing import Any, Final

from inference.config import InferenceConfig
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
from infra.serving.description import InferenceServiceArgs, Version, labels, metadata
from infra.settings.inference import FetchSettings, InferenceServiceSettings
from kube.names import (
    API_KEYS_VOLUME,
    EXPORT_VOLUME,
    MODELS_PATH,
    MODELS_VOLUME,
    SCHEME_ANNOTATION,
    SECRETS_PATH,
    TLS_VOLUME,
)

TLS_PATH: Final = f"{SECRETS_PATH}/{TLS_VOLUME}"
API_KEYS_PATH: Final = f"{SECRETS_PATH}/{API_KEYS_VOLUME}"
_STARTUP_PERIOD: Final = 2


def deployment(
    args: InferenceServiceArgs, version: Version, annotations: dict[str, str]
) -> Manifest:
    """Return the Deployment. Pods are live at once, and ready when the export is loaded.

    An update adds a pod before it removes one, and waits until the new pod has been ready for a
    while.
    """
    settings = args.service
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(args, version, annotations),
        "spec": compact(
            {
                # An autoscaler owns the number of replicas.
                "replicas": version.replicas,
                "minReadySeconds": settings.min_ready_seconds,
                "progressDeadlineSeconds": settings.progress_deadline_seconds,
                "revisionHistoryLimit": 3,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
                },
                "selector": {"matchLabels": version.selector},
                "template": pod_template(_pod(args, version)),
            }
        ),
    }


def server_config(args: InferenceServiceArgs, version: Version) -> InferenceConfig:
    """Return the model server's configuration for a version."""
    settings = args.service
    told: dict[str, Any] = {
        **version.server,
        "model_name": args.model,
        "model_path": export_path(version),
        "model_sha256": version.digest,
        "port": settings.port,
    }
    if settings.tls is not None:
        told |= {"tls_certificate": f"{TLS_PATH}/tls.crt", "tls_key": f"{TLS_PATH}/tls.key"}
    if settings.api_keys is not None:
        told["api_keys_file"] = f"{API_KEYS_PATH}/{settings.api_keys.key}"
    return InferenceConfig.model_validate(compact(told))


def _pod(args: InferenceServiceArgs, version: Version) -> Pod:
    settings = args.service
    nodes = args.gpu_nodes
    told = server_config(args, version).to_environment()
    named = {"RUN_NAME": version.run} if version.run is not None else {}
    return Pod(
        container="inference",
        image=version.image,
        command=["python3", "-m", "inference"],
        cpu=settings.cpu,
        memory=settings.memory,
        shm=settings.shm,
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
        annotations={SCHEME_ANNOTATION: "https"} if settings.tls else {},
        env={**named, **told, **variables_from(settings.env_from), **settings.env},
        init=fetching(version, settings.fetch),
        mounts=[*model_mounts(args, version), *_claims(args)],
        volumes=[*model_volumes(version, settings.fetch), *_secrets(settings)],
        ports={"http": settings.port},
        probes=_probes(settings),
        node_selector=settings.node_selector,
        tolerations=[toleration.manifest for toleration in settings.tolerations],
        spread=even_spread(version.selector) if settings.spread else (),
        priority_class=settings.priority_class,
    )


def _claims(args: InferenceServiceArgs) -> list[Mount]:
    return [
        Mount(
            name=name,
            claim=args.claims[volume.claim],
            path=volume.path,
            read_only=volume.read_only,
        )
        for name, volume in args.service.volumes.items()
        if volume.claim is not None
    ]


def _secrets(settings: InferenceServiceSettings) -> list[Volume]:
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


def _probes(settings: InferenceServiceSettings) -> dict[str, Manifest]:
    scheme = {"scheme": "HTTPS"} if settings.tls else {}

    def probe(path: str, period: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": "http", **scheme},
            "periodSeconds": period,
            "timeoutSeconds": 2,
            "failureThreshold": failures,
        }

    startup_failures = math.ceil(settings.startup_seconds / _STARTUP_PERIOD)
    return {
        "startupProbe": probe("/v2/health/live", _STARTUP_PERIOD, startup_failures),
        "livenessProbe": probe("/v2/health/live", 10, 3),
        "readinessProbe": probe("/v2/health/ready", 2, 3),
    }


_OTHER_FORMS: Final = ("pt2", "int8", "pruned")
"""Backends that load another file of the export than the weights."""


def export_path(version: Version) -> str:
    """Return the directory with the manifest, in the container."""
    return f"{MODELS_PATH}/{version.run}/export" if version.url is None else f"{MODELS_PATH}/export"


def model_mounts(args: InferenceServiceArgs, version: Version) -> list[Mount]:
    """Return the claim with all runs, or nothing if the export is downloaded."""
    if version.url is not None:
        return []
    claim = args.claims[args.service.checkpoints]
    return [Mount(name=MODELS_VOLUME, claim=claim, path=MODELS_PATH, read_only=True)]


def model_volumes(version: Version, fetch: FetchSettings) -> list[Volume]:
    """Return the volume for a downloaded export."""
    if version.url is None:
        return []
    source = {"emptyDir": {"sizeLimit": fetch.size}}
    return [Volume(name=EXPORT_VOLUME, source=source, path=MODELS_PATH, read_only=True)]


def fetching(version: Version, fetch: FetchSettings) -> list[InitContainer]:
    """Return the init container that downloads the export and verifies it by its manifest.

    Only this container has the credentials of the object store.
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
