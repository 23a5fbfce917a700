"""Checks that names are unique, and that referenced queues, images and other objects exist."""

from collections.abc import Collection, Iterator
from pathlib import Path

from infra.manifests import RECORDER
from infra.settings.cluster import GpuSettings
from infra.settings.images import PROJECT_ROOT, ImagesSettings, is_inside
from infra.settings.inference import InferenceSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.monitoring import LogsSettings, MonitoringSettings
from infra.settings.problems import choice, full_key, job_key, service_key
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import SYSTEM_NAMESPACES, TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.training.job import TrainingJobSettings
from infra.settings.training.sweep import CONTROLLER
from infra.settings.training.sweep import template_name as sweep_template_name
from infra.settings.volcano import VolcanoSettings
from kube.kinds import KINDS
from kube.kinds.record import TRAINING_PROGRAM
from kube.kinds.volcano import TRAINING_STEP, template_name, with_ancestors

_Reference = tuple[str, str | None, str, str, Collection[str]]
"""A setting, the name that it refers to, the section and table that must declare this name, and
the names that are declared there."""


def parents_exist(volcano: VolcanoSettings) -> Iterator[str]:
    """Check that each queue's parent is declared and that there are no cycles."""
    parents = {name: queue.parent for name, queue in volcano.queues.items()}
    for name, queue in volcano.queues.items():
        path = full_key("volcano", "queues", name, "parent")
        if queue.parent is None:
            continue
        if queue.parent not in {*volcano.queues, "root"}:
            yield (
                f"{path} is {queue.parent!r}, which is not a queue of this stack: "
                f"{choice({*volcano.queues, 'root'} - {name})}."
            )
        elif name in with_ancestors(queue.parent, parents):
            yield f"{path} is {queue.parent!r}, which makes {name!r} its own ancestor."


def jobs_refer_to_declared_objects(
    training: TrainingSettings,
    volcano: VolcanoSettings,
    images: ImagesSettings,
    storage: StorageSettings,
) -> Iterator[str]:
    """Check that each job's queue, priority class, image and claims are declared."""
    classes = volcano.known_priority_classes
    for key, job in training.all_jobs.items():
        references: tuple[_Reference, ...] = (
            ("queue", job.queue, "volcano", "queues", volcano.queues),
            ("priority_class", job.priority_class, "volcano", "priority_classes", classes),
            ("image", job.image, "images", "workloads", images.workloads),
            (
                "schedule.image",
                job.schedule.image if job.schedule else None,
                "images",
                "workloads",
                images.workloads,
            ),
            ("checkpoints", job.checkpoints, "storage", "claims", storage.claims),
            ("datasets", job.datasets, "storage", "claims", storage.claims),
            (
                "notebook.home",
                job.notebook.home if job.notebook else None,
                "storage",
                "claims",
                storage.claims,
            ),
            *(
                (f"volumes.{name}.claim", volume.claim, "storage", "claims", storage.claims)
                for name, volume in job.volumes.items()
            ),
        )
        for field, name, section, table, known in references:
            yield from _undeclared(job_key(key, field), name, full_key(section, table), known)


def services_refer_to_declared_objects(
    inference: InferenceSettings,
    volcano: VolcanoSettings,
    images: ImagesSettings,
    storage: StorageSettings,
    training: TrainingSettings,
) -> Iterator[str]:
    """Check that each service's job, sweep, images, claims and priority class are declared.

    The job or sweep must also export a model that the service can load.
    """
    classes = volcano.known_priority_classes
    for key, service in inference.services.items():
        references: tuple[_Reference, ...] = (
            ("job", service.job, "training", "jobs", training.jobs),
            ("sweep", service.sweep, "training", "sweeps", training.sweeps),
            ("image", service.image, "images", "workloads", images.workloads),
            *(
                (field, claim, "storage", "claims", storage.claims)
                for field, claim in service.claims.items()
            ),
            ("priority_class", service.priority_class, "volcano", "priority_classes", classes),
            *(
                (f"volumes.{name}.claim", volume.claim, "storage", "claims", storage.claims)
                for name, volume in service.volumes.items()
            ),
        )
        if service.canary is not None:
            image = service.canary.image
            references += (("canary.image", image, "images", "workloads", images.workloads),)
            if (limits := service.canary.rollback) is not None:
                references += (
                    (
                        "canary.rollback.image",
                        limits.image,
                        "images",
                        "workloads",
                        images.workloads,
                    ),
                )
        for field, name, section, table, known in references:
            yield from _undeclared(service_key(key, field), name, full_key(section, table), known)
        for field, name, job in _served_jobs(service, training):
            yield from _export_problems(service_key(key, field), name, service, job)
            if job.checkpoints != service.checkpoints:
                yield (
                    f"{service_key(key, 'checkpoints')} is {service.checkpoints!r}, but {field} "
                    f"{name!r} exports to {job.checkpoints!r}: use {job.checkpoints!r} here as "
                    "well."
                )
        sweep = training.sweeps.get(service.sweep or "")
        if sweep is not None and sweep.winner == "none":
            yield (
                f"{service_key(key, 'sweep')} is {service.sweep!r}, but its winner is not "
                f"served: set {full_key('training', 'sweeps', str(service.sweep), 'winner')}: "
                "serve."
            )


def winners_have_a_service(
    training: TrainingSettings, inference: InferenceSettings
) -> Iterator[str]:
    """Check that each sweep with `winner: serve` has a service."""
    served = {service.sweep for service in inference.services.values()}
    for key, sweep in training.sweeps.items():
        if sweep.winner == "serve" and key not in served:
            yield (
                f"{full_key('training', 'sweeps', key, 'winner')} is 'serve', but no service has "
                f"`sweep: {key}`: add one to {full_key('inference', 'services')}, or remove "
                "winner."
            )


def _served_jobs(
    service: InferenceServiceSettings, training: TrainingSettings
) -> Iterator[tuple[str, str, TrainingJobSettings]]:
    """Yield the service's `job` or `sweep` field, its value, and the job that exports the model."""
    if service.job in training.jobs:
        yield "job", service.job, training.jobs[service.job]
    if service.sweep in training.sweeps:
        yield "sweep", service.sweep, training.sweeps[service.sweep].job


def _export_problems(
    path: str, name: str, service: InferenceServiceSettings, job: TrainingJobSettings
) -> Iterator[str]:
    """Yield each reason why the service cannot serve the job's export."""
    if job.notebook is not None:
        yield (
            f"{path} is {name!r}, which is a notebook, so it exports no model: name another "
            "job, or set `run` to a run with an export."
        )
        return
    if job.schedule is not None:
        yield (
            f"{path} is {name!r}, which has a schedule, so it has no single run: set `run` to one "
            "of its runs instead."
        )
        return
    if job.torchtitan is not None and service.runtime == "torch":
        yield (
            f"{path} is {name!r}, which trains with torchtitan. torchtitan exports a Hugging Face "
            "directory, which the model server cannot load: set another runtime, such as vllm."
        )
    config = job.hyperparameters
    if config is None:
        return
    uses_training_program = KINDS[job.kind].program == TRAINING_PROGRAM
    if not uses_training_program and service.runtime in ("torch", "vllm"):
        yield (
            f"{path} is {name!r}, which has kind {job.kind}. Jobs of this kind export a "
            "SavedModel, which the model server cannot load: serve a job of another kind."
        )
    elif service.runtime == "vllm" and config.model != "gpt":
        yield (
            f"{path} is {name!r}, which trains the model {config.model}. vLLM cannot load it: "
            "serve a job with model gpt, or set another runtime."
        )


def object_names_are_unique(
    training: TrainingSettings, inference: InferenceSettings, logs: LogsSettings
) -> Iterator[str]:
    """Check that no two settings create objects or directories with the same name."""
    owners: dict[tuple[str, str], str] = {}
    for path, name, kinds, remedy in _created_objects(training, inference, logs):
        for kind in kinds:
            owner = owners.setdefault((kind, name), path)
            if owner != path:
                yield (
                    f"{path} would create the {kind} {name!r}, which {owner} also creates: "
                    f"{remedy}."
                )
                break


def _created_objects(
    training: TrainingSettings, inference: InferenceSettings, logs: LogsSettings
) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield a tuple for each setting that creates objects.

    The tuple contains the setting, the name and kinds of the objects, and advice for renaming them.
    """
    kinds = ("Deployment", "Service")
    for key in inference.services:
        yield service_key(key), key, kinds, "use another key"
    for key, service in inference.services.items():
        if service.canary is not None:
            remedy = "use another key for one of the services"
            yield service_key(key, "canary"), f"{key}-canary", kinds, remedy
    remedy = "use another key for the service"
    for key in inference.rollbacks:
        path = service_key(key, "canary", "rollback")
        yield path, f"{key}-rollback", ("Deployment",), remedy
    if logs.recorder is not None:
        yield full_key("logs", "recorder"), RECORDER, ("Deployment",), remedy
    if training.sweeps:
        yield full_key("training", "sweeps"), CONTROLLER, ("Deployment",), remedy
    for key, sweep in training.sweeps.items():
        path, name = full_key("training", "sweeps", key), sweep_template_name(key)
        yield path, name, ("JobTemplate",), "use another key"
        yield path, f"{sweep.job.checkpoints}/{name}", ("directory",), "use another key"
    for key, job in training.jobs.items():
        path, remedy = job_key(key, "run"), "use another `run`"
        if job.run is not None:
            yield path, f"{job.checkpoints}/{job.run}", ("directory",), remedy
        if job.run is not None and _has_service(job):
            yield path, job.run, ("Service",), remedy
        if job.run is not None and job.starts_in_flow:
            for step in (TRAINING_STEP, *job.expanded.steps):
                yield path, template_name(job.run, step), ("JobTemplate",), remedy


def _has_service(job: TrainingJobSettings) -> bool:
    """Return True if the job's run has a Service with the same name."""
    if job.starts_in_flow:
        return False
    has_service = {
        "every run": True,
        "several pods": job.nodes > 1,
        "route": job.notebook is not None and job.notebook.route is not None,
        "none": False,
    }
    return has_service[KINDS[job.kind].service]


def _undeclared(path: str, name: str | None, table: str, known: Collection[str]) -> Iterator[str]:
    if name is not None and name not in known:
        yield f"{path} is {name!r}, which is not declared under {table}: {choice(known)}."


def sources_exist(images: ImagesSettings) -> Iterator[str]:
    """Check that the sources of built images are in the repository."""
    for key, image in images.workloads.items():
        if image.build is None:
            continue
        path = full_key("images", "workloads", key, "build")
        if not is_inside(image.build.dockerfile, PROJECT_ROOT, Path.is_file):
            yield (
                f"{path}.dockerfile is {image.build.dockerfile!r}, which does not exist in the "
                "checkout: correct the path."
            )
        for name in image.build.sources:
            if not is_inside(name, PROJECT_ROOT):
                yield (
                    f"{path}.sources contains {name!r}, which does not exist in the checkout: "
                    "correct the path."
                )


def claim_names_are_unique(storage: StorageSettings) -> Iterator[str]:
    """Check that the claims' names in the cluster are unique."""
    owners: dict[str, str] = {}
    for key, claim in storage.claims.items():
        name = claim.name or key
        if name in owners:
            yield (
                f"{full_key('storage', 'claims', key, 'name')} is {name!r}, which is also the "
                f"name of claim {owners[name]!r}: use different names."
            )
        owners[name] = key


def namespaces_differ(
    gpu: GpuSettings,
    volcano: VolcanoSettings,
    tenancy: TenancySettings,
    monitoring: MonitoringSettings,
) -> Iterator[str]:
    """Check that no two sections create the same namespace.

    No section may use a namespace that Kubernetes creates, because the stack sets the Pod Security
    level of its namespaces.
    """
    owners: dict[str, str] = {}
    health = gpu.node_health
    chart, exporter = monitoring.kube_prometheus_stack, monitoring.dcgm_exporter
    has_exporter = monitoring.prometheus != "none" and exporter.install
    gpu_key = "gpu" if gpu.provider == "device-plugin" else "gpu.operator"
    for section, name in (
        (gpu_key, gpu.system_namespace),
        ("gpu.node_health", None if health is None else health.namespace),
        ("volcano", volcano.namespace if volcano.install else None),
        ("monitoring.kube_prometheus_stack", chart.namespace if chart.install else None),
        ("monitoring.dcgm_exporter", exporter.namespace if has_exporter else None),
        ("tenancy", tenancy.namespace),
    ):
        if name in SYSTEM_NAMESPACES:
            yield (
                f"{full_key(section, 'namespace')} is {name!r}, which belongs to Kubernetes: use a "
                "namespace that only the stack uses."
            )
        if name in owners:
            yield (
                f"{full_key(section, 'namespace')} is {name!r}, which is also the value of "
                f"{full_key(owners[name], 'namespace')}: use different names."
            )
        if name is not None:
            owners[name] = section


def one_dcgm_exporter(gpu: GpuSettings, monitoring: MonitoringSettings) -> Iterator[str]:
    """Check that the GPU Operator and the stack do not both install a DCGM exporter."""
    operator_installs = gpu.provider == "gpu-operator" and gpu.operator.dcgm_exporter
    if operator_installs and monitoring.prometheus != "none" and monitoring.dcgm_exporter.install:
        yield (
            f"{full_key('monitoring', 'dcgm_exporter', 'install')} is true, but the GPU Operator "
            "installs an exporter as well: set dcgm_exporter: {install: false, existing: {}}."
        )


def node_health_image_is_declared(gpu: GpuSettings, images: ImagesSettings) -> Iterator[str]:
    """Check that the image of the node health controller is declared."""
    if gpu.node_health is not None:
        path, name = full_key("gpu", "node_health", "image"), gpu.node_health.image
        yield from _undeclared(path, name, full_key("images", "workloads"), images.workloads)


def sweeps_image_is_declared(training: TrainingSettings, images: ImagesSettings) -> Iterator[str]:
    """Check that the image of the sweep controller is declared if there are sweeps."""
    if training.sweeps:
        path, name = (
            full_key("training", "sweep_controller", "image"),
            training.sweep_controller.image,
        )
        yield from _undeclared(path, name, full_key("images", "workloads"), images.workloads)


def recorder_image_and_claims_are_declared(
    logs: LogsSettings, images: ImagesSettings, storage: StorageSettings
) -> Iterator[str]:
    """Check that the recorder's image is declared and that its claims are ReadWriteMany."""
    if logs.recorder is None:
        return
    path, name = full_key("logs", "recorder", "image"), logs.recorder.image
    yield from _undeclared(path, name, full_key("images", "workloads"), images.workloads)
    for number, key in enumerate(logs.recorder.claims):
        path, claim = full_key("logs", "recorder", "claims", number), storage.claims.get(key)
        yield from _undeclared(path, key, full_key("storage", "claims"), storage.claims)
        if claim is not None and "ReadWriteMany" not in claim.access_modes:
            modes = ", ".join(claim.access_modes)
            yield (
                f"{path} is {key!r}, whose access_modes are {modes}: while the recorder mounts "
                "the claim on one node, training pods on other nodes cannot mount it. Use a "
                "ReadWriteMany claim, or remove the recorder."
            )
