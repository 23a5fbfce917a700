"""Small jobs of every kind, their objects, and policy violations in a complete stack."""

import copy
import json
from collections.abc import Callable
from typing import Any, Final

from infra import storage, tenancy, volcano
from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.settings import StackSettings, validate
from infra.training_run import TrainingJobArgs, manifests
from kube.kinds import KINDS, kinds_that_support
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.examples import TRAINING_IMAGE, good, problems

_PROGRAM: Final = {"model": "digits-net", "dataset": "digits", "epochs": 3}
_NOTEBOOK: Final = {
    "nodes": None,
    "priority_class": "notebooks",
    "notebook": {
        "home": "checkpoints",
        "token_secret": "anna",
        "route": {
            "gateway": {"name": "public", "namespace": "gateways"},
            "hostnames": ["notebooks.example.com"],
            "path": "/anna",
        },
    },
}
_COMMAND: Final = {"command": ["python3", "program.py"], "hyperparameters": None}
NODES: Final = GpuNodes(
    resource="nvidia.com/gpu",
    node_selector={"nvidia.com/gpu.present": "true"},
    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
)
# Policies are configurable. Here, they allow everything that the settings allow.
PACK: Final[dict[str, Any]] = {
    "training-retries-bounded": {"maxRetries": 100},
    "training-gang-whole": {
        "elasticWorkloads": ["ml/*/job-*", "ml/JobTemplate.flow.volcano.sh/*-train"]
    },
    "training-pod-group-whole": {"elasticWorkloads": ["ml/*/job-*"]},
    "no-host-namespaces": {
        "systemWorkloads": ["ml/*/job-*", "ml/JobTemplate.flow.volcano.sh/*-train"]
    },
    "training-ends": "disabled",
    "no-hidden-token": {"systemWorkloads": ["ml/CronJob/job-schedule"]},
    "no-service-account-token": {"systemWorkloads": ["ml/CronJob/job-schedule"]},
    "namespace-gpu-quota": {"maxQuota": 10**6},
    "systemWorkloads": {"workloads": ["*/PersistentVolume/shared-*", "*/Namespace/ml"]},
}


def job(kind: str, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a job of a kind."""
    job_config = {
        "kind": kind,
        "queue": "research",
        "priority_class": "training",
        "nodes": 2,
        "gpus_per_node": 4,
        "cpu": "8",
        "memory": "64Gi",
        "datasets": "datasets",
        **_program(kind),
        **changes,
    }
    # Tests may modify the copy.
    return copy.deepcopy({key: value for key, value in job_config.items() if value is not None})


def _program(kind: str) -> dict[str, Any]:
    if kind == "notebook":
        return _NOTEBOOK
    return (
        {"hyperparameters": _PROGRAM} if kind in kinds_that_support("hyperparameters") else _COMMAND
    )


def configuration(job_config: dict[str, Any]) -> dict[str, Any]:
    """Return a stack with only this job, whose key is `job`."""
    values = good()
    values["tenancy"] |= {"pod_security": "privileged"}
    values["volcano"]["queues"] = {"research": {}}
    if job_config.get("kind") == "notebook":
        values["volcano"]["priority_classes"]["notebooks"] = {"value": 50}
    # Another stack's device plugin may use any resource name for GPUs.
    values["gpu"] = {"provider": "existing"}
    gpu_resource = job_config.get("gpu_resource", "nvidia.com/gpu")
    devices = {} if gpu_resource == "nvidia.com/gpu" else {gpu_resource: 10**6}
    values["tenancy"]["quota"] = {"gpus": 10**6, "devices": devices}
    values["inference"] = {}
    image_names = ["titan", "recorder", *(name for name, kind in KINDS.items() if kind.image_needs)]
    values["images"]["workloads"] |= {kind: {"reference": TRAINING_IMAGE} for kind in image_names}
    values["training"]["jobs"] = {"job": job_config}
    return values


def problems_of(job_config: dict[str, Any]) -> list[str]:
    """Return all problems of a job."""
    return problems(configuration(job_config))


def objects(job_config: dict[str, Any], run: str = "job-0123abcd") -> list[Manifest]:
    """Return the job's objects."""
    return _objects(validate(configuration(job_config)), run)


def kind_of(job_config: dict[str, Any], kind: str) -> Manifest:
    """Return the job's only object of a kind."""
    (found,) = (manifest for manifest in objects(job_config) if manifest["kind"] == kind)
    return found


def mandatory_violations(
    job_config: dict[str, Any], edit: Callable[[Manifest], object] = lambda _: None
) -> list[str]:
    """Return the mandatory violations in a complete stack, with `edit` applied to the objects."""
    built = _objects(validate(configuration(job_config)), "job-0123abcd")
    for manifest in built:
        edit(manifest)
    stack = [*surrounding_objects(configuration(job_config)), *built]
    texts = [json.dumps(manifest, ensure_ascii=False) for manifest in stack]
    documents = [document for text in texts for document in read("", text)]
    return [
        f"{finding.rule}: {finding.message}"
        for finding in evaluate(documents, configure(PACK, RULES))
        if finding.mandatory
    ]


def _objects(settings: StackSettings, run: str) -> list[Manifest]:
    args = TrainingJobArgs(
        key="job",
        job=settings.training.jobs["job"],
        namespace="ml",
        image=TRAINING_IMAGE,
        image_identity=TRAINING_IMAGE,
        gpu_nodes=NODES,
        claims={key: key for key in settings.storage.claims},
        schedule_image=TRAINING_IMAGE,
        isolated=settings.tenancy.network.isolate,
    )
    return manifests(args, run, TRAINING_IMAGE)


def surrounding_objects(values: dict[str, Any]) -> list[Manifest]:
    """Return the namespace, queues, priority classes and claims of a configuration."""
    settings = validate(values)
    namespace = tenancy.TenancyArgs(tenancy=settings.tenancy, gpu_resource="nvidia.com/gpu")
    return [
        tenancy.namespace(settings.tenancy),
        tenancy.limit_range(settings.tenancy),
        *tenancy.manifests(namespace),
        *(volcano.queue(name, queue) for name, queue in settings.volcano.queues.items()),
        *(
            volcano.priority_class(name, priority)
            for name, priority in settings.volcano.priority_classes.items()
        ),
        *(storage.storage_class(name, c) for name, c in settings.storage.classes.items()),
        *(storage.claim(name, "ml", claim) for name, claim in settings.storage.claims.items()),
    ]
