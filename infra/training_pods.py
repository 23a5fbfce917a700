"""The pods of a training job, from its settings: of the training, a launcher and the steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infra.backends.gang import LEADER, WORKER, Step
from infra.manifests import Manifest, standard_labels
from infra.placement import alone_on_its_node, even_spread, packed
from infra.pods import (
    GpuNodes,
    Mount,
    Pod,
    Rdma,
)
from infra.references import further_volumes, variables_from
from infra.settings.jobs.steps import StepSettings
from infra.settings.training import LauncherSettings, TrainingJobSettings
from kube.kinds import KINDS
from kube.names import (
    CHECKPOINTS_PATH,
    CHECKPOINTS_VOLUME,
    DATASETS_PATH,
    DATASETS_VOLUME,
    PROMETHEUS_ANNOTATION,
    RUN_LABEL,
    WORKLOAD_LABEL,
)
from kube.shared_memory import default_shm


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a job's pods need beyond its settings. `image` is text or a Pulumi output of it."""

    key: str
    run: str
    image: Any
    gpu_nodes: GpuNodes
    claims: Mapping[str, str]
    service_account: str


def training_pod(job: TrainingJobSettings, around: Surroundings) -> Pod:
    """The pod that each node of the gang gets; its command is what the job kind completes."""
    labels = _labels(around, "training")
    selector = {RUN_LABEL: around.run}
    if KINDS[job.kind].has_launcher:
        # Where the leader is says nothing about room for the others.
        labels |= WORKER
        selector |= WORKER
    spread = job.spread and job.nodes > 1
    return Pod(
        container="training",
        image=around.image,
        command=_command(job, around.run),
        cpu=job.cpu,
        memory=job.memory,
        shm=job.shared_memory,
        gpus=job.gpus_per_node,
        gpu_nodes=replace(around.gpu_nodes, resource=job.gpu_resource or around.gpu_nodes.resource),
        service_account=around.service_account,
        grace_seconds=job.grace_seconds,
        labels=labels,
        annotations={**_scraping(job), **job.annotations},
        ports=_metrics_port(job),
        env=_environment(job, around.run),
        mounts=_mounts(job, around),
        volumes=further_volumes(job.volumes),
        rdma=Rdma(**job.rdma.model_dump()) if job.rdma else None,
        node_selector=job.labels_of_nodes,
        spread=even_spread(selector, strict=True) if spread else (),
        affinity=_affinity(job, around.run),
        host_network=job.host_network,
        deadline_seconds=job.attempt_deadline_seconds,
    )


def leader_pod(job: TrainingJobSettings, pod: Pod) -> Pod:
    """The pod that starts the others: like them, but without GPUs and a place of its own."""
    size = job.launcher or LauncherSettings()
    return replace(
        pod,
        cpu=size.cpu,
        memory=size.memory,
        shm=default_shm(1, size.memory),
        labels={**pod.labels, **LEADER},
        gpus=0,
        rdma=None,
        node_selector={},
        spread=(),
        affinity={},
        ports={},
    )


def steps(job: TrainingJobSettings, around: Surroundings, pod: Pod) -> list[Step]:
    """The steps before and after the training, one pod each."""
    return [
        Step(name=name, pod=_step_pod(job, step, around, pod), after=step.after)
        for name, step in job.steps.items()
    ]


def _step_pod(job: TrainingJobSettings, step: StepSettings, around: Surroundings, pod: Pod) -> Pod:
    mounts = [
        replace(mount, read_only=mount.read_only and not step.writes_datasets)
        for mount in pod.mounts
    ]
    return replace(
        pod,
        container="step",
        command=step.command,
        cpu=step.cpu,
        memory=step.memory,
        shm=default_shm(max(step.gpus, 1), step.memory),
        gpus=step.gpus,
        labels=_labels(around, "training" if step.gpus else "step"),
        env={**_run_variables(around.run), **variables_from(job.env_from), **job.env, **step.env},
        mounts=mounts,
        rdma=None,
        node_selector=job.labels_of_nodes if step.gpus else {},
        spread=(),
        affinity={},
        host_network=False,
        annotations=job.annotations,
        ports={},
    )


def _metrics_port(job: TrainingJobSettings) -> dict[str, int]:
    port = job.hyperparameters.metrics_port if job.hyperparameters else 0
    return {"metrics": port} if port else {}


def _scraping(job: TrainingJobSettings) -> dict[str, str]:
    """What Prometheus goes by where no PodMonitor tells it: a convention of its example."""
    return {
        f"{PROMETHEUS_ANNOTATION}{name}": value
        for port in _metrics_port(job).values()
        for name, value in {"scrape": "true", "port": str(port), "path": "/metrics"}.items()
    }


def _command(job: TrainingJobSettings, run: str) -> list[str]:
    if job.hyperparameters is None:
        return list(job.command or [])
    config = job.hyperparameters.model_copy(update={"run_dir": f"{CHECKPOINTS_PATH}/{run}"})
    return ["-m", KINDS[job.kind].program, *config.to_args()]


def _environment(job: TrainingJobSettings, run: str) -> dict[str, Any]:
    variables: dict[str, Any] = {"RUN_NAME": run}
    if job.command is not None:
        variables = _run_variables(run)
    if job.omp_threads is not None:
        variables["OMP_NUM_THREADS"] = str(job.omp_threads)
    if job.nccl is not None:
        variables |= job.nccl.to_environment(job.rdma.interface if job.rdma else None)
    return {**variables, **variables_from(job.env_from), **job.env}


def _run_variables(run: str) -> dict[str, Any]:
    """What a command of one's own is told of the run: its name and its folder."""
    return {"RUN_NAME": run, "RUN_DIR": f"{CHECKPOINTS_PATH}/{run}"}


def _labels(around: Surroundings, workload: str) -> dict[str, str]:
    return {
        **standard_labels(around.key, around.run),
        WORKLOAD_LABEL: workload,
        RUN_LABEL: around.run,
    }


def _mounts(job: TrainingJobSettings, around: Surroundings) -> list[Mount]:
    claims = around.claims
    mounts = [Mount(name=CHECKPOINTS_VOLUME, claim=claims[job.checkpoints], path=CHECKPOINTS_PATH)]
    if job.datasets is not None:
        claim = claims[job.datasets]
        mounts.append(Mount(name=DATASETS_VOLUME, claim=claim, path=DATASETS_PATH, read_only=True))
    mounts += [
        Mount(
            name=name,
            claim=claims[volume.claim],
            path=volume.path,
            read_only=volume.read_only,
        )
        for name, volume in job.volumes.items()
        if volume.claim is not None
    ]
    return mounts


def _affinity(job: TrainingJobSettings, run: str) -> Manifest:
    affinity: Manifest = {}
    if job.pack is not None:
        affinity |= packed({RUN_LABEL: run}, job.pack.label, required=job.pack.required)
    if job.whole_node:
        affinity |= alone_on_its_node(WORKLOAD_LABEL, LEADER)
    return affinity
