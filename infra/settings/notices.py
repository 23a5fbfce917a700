"""Warnings about valid configurations that are probably not intended."""

from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Final

from infra.serving.runtimes.runtime import REQUESTS
from infra.settings import StackSettings
from infra.settings.amounts import (
    combine,
    format_amount,
    largest_gang,
    quota_limits,
    services_total,
    update_surge,
)
from infra.settings.problems import full_key, job_key, service_key
from infra.settings.training.job import TrainingJobSettings
from kube.kinds import KINDS
from kube.kinds.record import TRAINING_PROGRAM
from kube.quantities import parse_quantity

MAX_JOBS: Final = 100
"""Maximum number of jobs that a stack may have without a warning. A file or bucket backend writes
the whole state at each step of an update, so the time per job grows with the number of jobs
(docs/scale.md)."""

RATE_SECONDS: Final = 300
"""Time range (s) of the rates in alerts and dashboards."""

_EFA: Final = "vpc.amazonaws.com/"
"""Resource name prefix of EFA, which NCCL uses through a plugin. `nccl.network` would bypass the
plugin."""

_GKE: Final = "cloud.google.com/"
"""Prefix of labels that GKE sets on nodes."""


def notices(settings: StackSettings) -> Iterator[str]:
    """Yield a sentence for each setting that is valid but probably not intended."""
    yield from _many_jobs(settings)
    yield from _missing_nccl_network(settings)
    yield from _image_without_the_program(settings)
    yield from _priorities_without_preemption(settings)
    yield from _runs_without_metrics(settings)
    yield from _exporter_without_driver(settings)
    yield from _infrequent_scrapes(settings)
    yield from _updates_blocked_by_training(settings)
    yield from _claims_bound_to_the_first_node(settings)
    yield from _too_few_cores_or_no_grace_period(settings)
    yield from _surge_pods_with_exclusive_claims(settings)
    yield from _progress_deadlines_before_startup(settings)
    yield from _series_without_rules(settings)
    yield from _admission_without_policies(settings)


def _many_jobs(settings: StackSettings) -> Iterator[str]:
    jobs = len(settings.training.jobs)
    if jobs > MAX_JOBS:
        yield (
            f"{full_key('training', 'jobs')} contains {jobs} jobs. With more than {MAX_JOBS}, "
            "updates become slow, because a file or bucket backend writes the whole state at each "
            "step: give each team its own stack (docs/scale.md), or use Pulumi Cloud."
        )


def _missing_nccl_network(settings: StackSettings) -> Iterator[str]:
    for key, job in settings.training.all_jobs.items():
        if job.rdma is None or job.nccl is not None or job.rdma.resource.startswith(_EFA):
            continue
        if "NCCL_NET" not in {*job.env, *job.env_from}:
            yield (
                f"{job_key(key, 'rdma')} is set, but {job_key(key, 'nccl')} is not: if NCCL "
                "finds no RDMA device, it silently uses TCP. Set nccl.network to infiniband or "
                "roce, so that NCCL fails instead (docs/rdma.md)."
            )


def _image_without_the_program(settings: StackSettings) -> Iterator[str]:
    for key, job in settings.training.all_jobs.items():
        needed = KINDS[job.kind].image_needs
        if needed is not None and "image" not in job.model_fields_set:
            yield (
                f"{job_key(key, 'kind')} is {job.kind!r}, which needs {needed} in the image, and "
                f"the default image {job.image!r} contains it only if you added it: set "
                f"{job_key(key, 'image')} (docs/jobs.md)."
            )


def _priorities_without_preemption(settings: StackSettings) -> Iterator[str]:
    scheduler = settings.volcano.configured
    # An explicit `preempt: none` is intended.
    if scheduler is None or "preempt" in scheduler.model_fields_set:
        return
    serving = {service.priority_class for service in settings.inference.services.values()}
    classes = settings.volcano.priority_classes
    job_classes = sorted(classes.keys() - serving, key=lambda name: classes[name].value)
    for low, high in pairwise(job_classes):
        urgent = classes[high]
        if urgent.value > classes[low].value and urgent.preemption != "Never":
            yield (
                f"{full_key('volcano', 'scheduler', 'preempt')} is none by default, so jobs of "
                f"class {high!r} are scheduled before jobs of class {low!r}, but do not preempt "
                "running jobs. Set it to surplus or gangs, or to none if this is intended "
                "(docs/queues.md)."
            )
            return


def _runs_without_metrics(settings: StackSettings) -> Iterator[str]:
    if settings.monitoring.prometheus == "none":
        return
    if keys := [key for key, job in settings.training.jobs.items() if _lacks_metrics_port(job)]:
        yield (
            f"Prometheus does not scrape these training.jobs: {', '.join(keys)}. No alert fires if "
            "they stall, diverge, save no checkpoints or fill /dev/shm, and their goodput is "
            "unknown: set metrics_port, for example 9400, in their hyperparameters "
            "(docs/monitoring.md)."
        )


def _exporter_without_driver(settings: StackSettings) -> Iterator[str]:
    exporter = settings.monitoring.dcgm_exporter
    on_gke = any(label.startswith(_GKE) for label in settings.gpu.node_selector)
    if settings.monitoring.prometheus == "none" or not exporter.install or exporter.gke:
        return
    if on_gke:
        yield (
            f"{full_key('gpu', 'node_selector')} has a GKE label, and on GKE the DCGM exporter "
            "does not find the driver by default: alerts and dashboards would not cover any GPU. "
            f"Set {full_key('monitoring', 'dcgm_exporter')}.gke to true, or install to false if "
            "the cluster has an exporter."
        )


def _infrequent_scrapes(settings: StackSettings) -> Iterator[str]:
    monitoring = settings.monitoring
    # A rate needs two samples.
    maximum = RATE_SECONDS // 2
    if monitoring.prometheus != "none" and monitoring.interval_seconds > maximum:
        yield (
            f"{full_key('monitoring', 'interval_seconds')} is {monitoring.interval_seconds}, but "
            f"alerts and dashboards read rates over {RATE_SECONDS} seconds, which need two "
            f"scrapes: set at most {maximum}, or some alerts never fire."
        )


def _lacks_metrics_port(job: TrainingJobSettings) -> bool:
    # Custom commands and the TensorFlow program do not have the `metrics_port` setting.
    if job.hyperparameters is None or KINDS[job.kind].program != TRAINING_PROGRAM:
        return False
    return not job.hyperparameters.metrics_port


def _claims_bound_to_the_first_node(settings: StackSettings) -> Iterator[str]:
    """Warn about claims that are bound to the node of a gang's first pod.

    All pods of the gang must then fit on this node. Volcano places the pods together, before any of
    them has bound the claim.
    """
    storage = settings.storage
    for key, job in settings.training.all_jobs.items():
        mounted = {job.checkpoints, job.datasets, *(each.claim for each in job.volumes.values())}
        for name in sorted(claim for claim in mounted if claim is not None):
            claim = storage.claims.get(name)
            storage_class = storage.classes.get(claim.storage_class or "") if claim else None
            if (
                job.has_several_pods
                and storage_class is not None
                and storage_class.binding == "WaitForFirstConsumer"
            ):
                yield (
                    f"{job_key(key)} has several pods and mounts the claim {name!r}, whose class "
                    "binds it to the node of the first pod: unless all pods fit on this node, the "
                    f"gang waits forever. Set {full_key('storage', 'classes')}."
                    f"{claim.storage_class if claim else ''}.binding to Immediate."
                )


def _too_few_cores_or_no_grace_period(settings: StackSettings) -> Iterator[str]:
    """Warn about jobs with too few cores for their threads, or no time to save a checkpoint.

    CPU is not limited, so jobs with too few cores still train on nodes with spare cores.
    """
    for key, job in settings.training.all_jobs.items():
        cores, processes = parse_quantity(job.cpu), job.gpus_per_node
        threads = job.omp_threads or 1
        if threads > 1 and processes * threads > cores:
            yield (
                f"{job_key(key, 'omp_threads')} is {threads}, so the processes of a pod start "
                f"{processes * threads} threads, but {job_key(key, 'cpu')} is {job.cpu}: set at "
                f"most {max(1, int(cores / processes))}, or request more CPUs."
            )
        elif processes > 1 and cores < processes:
            yield (
                f"{job_key(key, 'cpu')} is {job.cpu}, less than one core for each of the "
                f"{processes} processes (gpus_per_node): set at least {processes}."
            )
        if job.grace_seconds == 0:
            yield (
                f"{job_key(key, 'grace_seconds')} is 0: pods that are stopped have no time to save "
                "a checkpoint. Set it to the time that saving takes."
            )


def _updates_blocked_by_training(settings: StackSettings) -> Iterator[str]:
    """Warn if the quota does not permit service updates while the largest gang is running."""
    if not settings.training.jobs or not settings.inference.services:
        return
    services = services_total(settings.inference, settings.training, settings.gpu, settings.logs)
    surge = update_surge(settings.inference, settings.gpu)
    needed = combine(sum, [largest_gang(settings.training, settings.gpu), services, surge])
    for quota, name, limit in quota_limits(settings.tenancy, settings.gpu):
        total = needed.get(name, Decimal(0))
        if total > limit:
            yield (
                f"{quota} is {format_amount(limit, name)}, but the largest gang, all services and "
                "the additional pod during a service update need "
                f"{format_amount(total, name)} {name}. While the gang is running, no service can "
                "be updated: raise the quota to at least "
                f"{format_amount(total, name)}."
            )


def _surge_pods_with_exclusive_claims(settings: StackSettings) -> Iterator[str]:
    """Warn about services with one pod if a second pod may be unable to mount the same claims.

    ReadWriteOnce permits several pods on one node, so the update succeeds if the volume or a node
    selector keeps both pods on the same node.
    """
    for key, service in settings.inference.services.items():
        if service.max_pods > 1 or not service.rollout.additional_replicas:
            continue
        volumes = (volume.claim for volume in service.volumes.values())
        for name in sorted({*service.claims.values(), *filter(None, volumes)}):
            modes = settings.storage.claims[name].access_modes
            if not {"ReadWriteMany", "ReadOnlyMany"} & {*modes}:
                yield (
                    f"{service_key(key, 'rollout.surge')} is {service.rollout.surge}, so two pods "
                    f"mount claim {name!r} during an update, but its access_modes are "
                    f"{', '.join(modes)}: an update fails if the new pod is on another node. "
                    "Use `surge: 0`, unless there is only one node for the pod."
                )


def _progress_deadlines_before_startup(settings: StackSettings) -> Iterator[str]:
    """Warn about progress deadlines that may expire before the server has started.

    A short deadline is valid if the server starts fast, so warn only if both times are configured.
    """
    for key, service in settings.inference.services.items():
        start = service.startup_seconds + service.min_ready_seconds
        applies = service.canary is not None or service.runtime_of({}).nodes == 1
        both_are_set = {"startup_seconds", "progress_deadline_seconds"} <= service.model_fields_set
        if applies and both_are_set and service.progress_deadline <= start:
            yield (
                f"{service_key(key, 'progress_deadline_seconds')} is {service.progress_deadline}, "
                f"but startup_seconds ({service.startup_seconds}) and min_ready_seconds "
                f"({service.min_ready_seconds}) permit a start that takes {start} seconds, so a "
                "rollout fails while its server is still starting: remove "
                f"progress_deadline_seconds, or set it to more than {start} plus the time to pull "
                "the image."
            )


def _admission_without_policies(settings: StackSettings) -> Iterator[str]:
    """Warn about settings of the admission policies if there are no policies."""
    tenancy = settings.tenancy
    for key in ("admission_config", "admission_excluded_namespaces"):
        if tenancy.admission == "off" and getattr(tenancy, key):
            yield (
                f"{full_key('tenancy', key)} is set, but {full_key('tenancy', 'admission')} is "
                "off, so the API server evaluates no policies: set it to audit, warn or deny "
                "(docs/admission.md)."
            )


def _series_without_rules(settings: StackSettings) -> Iterator[str]:
    """Warn about autoscalers and rollbacks that read series which only recording rules create.

    A Prometheus server outside the stack may have these rules.
    """
    if settings.monitoring.prometheus != "none":
        return
    for key, service in settings.inference.services.items():
        runtime, scaling, canary = service.runtime_of({}), service.autoscaling, service.canary
        affected: dict[str, tuple[str, str]] = {}
        # KEDA directly queries the metrics of the server program.
        in_flight = scaling.requests_in_flight if scaling and not scaling.keda else None
        if in_flight is not None and not runtime.exports_in_flight:
            setting = f"autoscaling.requests_in_flight is {in_flight}"
            affected[setting] = ("the autoscaler cannot read the metric", "use autoscaling.keda")
        if canary is not None and canary.rollback is not None and REQUESTS in runtime.recordings:
            no_rollback = ("no rollback ever takes place", "remove canary.rollback")
            affected["canary.rollback is set"] = no_rollback
        for setting, (effect, alternative) in affected.items():
            yield (
                f"{service_key(key, setting)}, but the {service.runtime} runtime exports its "
                "metrics under different names, and the stack creates no recording rules for them. "
                f"Unless your Prometheus has these rules, {effect}: set "
                f"{full_key('monitoring', 'prometheus')} to operator or plain, or {alternative}."
            )
