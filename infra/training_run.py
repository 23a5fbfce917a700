"""One run of a training job: its name and its objects, built from the job's settings."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from infra.kinds import BUILDERS
from infra.kinds.gang import LAUNCHER_LABEL, WORKER_LABEL, Gang, Step
from infra.manifests import Manifest, compact, standard_labels
from infra.outputs import SharedResources
from infra.pods import (
    NODE_NAME,
    GpuNodes,
    Mount,
    Pod,
    Rdma,
    additional_volumes,
    even_spread,
    exclusive_node_affinity,
    shared_label_affinity,
    variables_from,
)
from infra.schedule import schedule_objects
from infra.settings.training.job import LauncherSettings, TrainingJobSettings
from infra.settings.training.steps import preceding_steps
from infra.settings.training.torchtitan import PROGRAM
from kube.kinds import KINDS
from kube.kinds.record import TRAINING_CONTAINER
from kube.kinds.volcano import TRAINING_STEP
from kube.names import (
    CHECKPOINTS_PATH,
    CHECKPOINTS_VOLUME,
    DATASETS_PATH,
    DATASETS_VOLUME,
    HOMES_PATH,
    HOMES_VOLUME,
    PROMETHEUS_ANNOTATION,
    RUN_LABEL,
    WORKLOAD_LABEL,
)
from kube.shared_memory import default_shm
from training.config import flag_of

_AUTOSCALER_ANNOTATIONS: Final = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations that keep autoscalers from removing a node on which a gang is training."""


@dataclass(frozen=True, kw_only=True)
class TrainingJobArgs:
    """A job, and the values that its pods need in addition to the job's settings.

    `image` is a string or a Pulumi output that may be unknown in a preview. `image_identity` is
    always known and identifies the image's contents. `claims` maps the claims' keys to their names
    in the cluster. These names and the namespace are strings or Pulumi outputs.
    """

    key: str
    job: TrainingJobSettings
    namespace: Any
    image: Any
    image_identity: str
    gpu_nodes: GpuNodes
    claims: Mapping[str, Any]
    service_account: str = "training"
    schedule_image: Any = None
    """Image of the program that starts the runs of a schedule."""
    isolated: bool = False
    """True if network policies isolate the namespace."""
    pull_secret: str | None = None

    @classmethod
    def of(
        cls, key: str, job: TrainingJobSettings, shared: SharedResources, *, isolated: bool = False
    ) -> Self:
        """Build the arguments for a job from the stack's shared resources."""
        return cls(
            key=key,
            job=job,
            namespace=shared.namespace,
            image=shared.images[job.image],
            image_identity=shared.identities[job.image],
            gpu_nodes=shared.gpu_nodes,
            claims=shared.claims,
            schedule_image=shared.images[job.schedule.image] if job.schedule else None,
            isolated=isolated,
            pull_secret=shared.pull_secret,
        )


def run_name(args: TrainingJobArgs) -> str:
    """Return the run's name: the job's key and a hash (8 hex digits) of its settings and image.

    The hash covers only settings that the job sets itself. New defaults or templates of this
    project, and changes to settings that all jobs share, therefore do not start a new run. The
    `run` setting overrides the name.
    """
    if args.job.run is not None:
        return args.job.run
    settings = {**args.job.specification, "image": args.image_identity}
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return f"{args.key}-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"


def manifests(args: TrainingJobArgs, run: str, image: Any) -> list[Manifest]:
    """Return the run's objects in the order of creation."""
    args = replace(args, job=args.job.expanded)
    job = args.job
    pod = _training_pod(args, run, image)
    gang = Gang(
        name=run,
        namespace=args.namespace,
        queue=job.queue,
        size=job.nodes,
        min_size=job.min_nodes,
        processes=job.gpus_per_node,
        pod=pod,
        custom_command=job.command is not None,
        launcher=_launcher_pod(job, pod),
        retries=job.retries,
        fatal_exit_codes=tuple(job.fatal_exit_codes),
        success=job.success,
        suspend=job.state == "suspended",
        stop=job.state == "stopped",
        priority_class=job.priority_class,
        deadline_seconds=job.deadline_seconds,
        network_topology=_network_topology(job),
        steps=[
            Step(
                name=name,
                pod=_step_pod(args, run, name, pod),
                after=step.waits_for,
                retries=step.retries,
            )
            for name, step in job.steps.items()
        ],
        after=job.waits_for,
        wrapper=_step_program(run, TRAINING_STEP, inputs=job.inputs),
        is_flow=job.schedule is not None,
        notebook=job.notebook,
    )
    objects = BUILDERS[job.kind](gang)
    if job.schedule is None:
        return objects
    *templates, _ = objects
    return [
        *templates,
        *schedule_objects(
            args.key,
            gang,
            job.schedule,
            image=args.schedule_image,
            isolated=args.isolated,
            pull_secret=args.pull_secret,
        ),
    ]


def _training_pod(args: TrainingJobArgs, run: str, image: Any) -> Pod:
    """Return the pod of the gang. The builder for the job kind completes the pod's command."""
    job = args.job
    labels = _labels(args.key, run, "training" if job.notebook is None else "interactive")
    selector = {RUN_LABEL: run}
    if KINDS[job.kind].has_launcher or job.steps:
        # The launcher and the steps must not affect where the workers are placed.
        labels |= WORKER_LABEL
        selector |= WORKER_LABEL
    spread = job.spread and job.nodes > 1
    return Pod(
        container=TRAINING_CONTAINER,
        image=image,
        command=_command(job, run),
        cpu=job.cpu,
        memory=job.memory,
        shm=job.shared_memory,
        gpus=job.gpus_per_node,
        gpu_nodes=replace(args.gpu_nodes, resource=job.gpu_resource or args.gpu_nodes.resource),
        tolerations=[toleration.manifest for toleration in job.tolerations],
        service_account=args.service_account,
        grace_seconds=job.grace_seconds,
        labels={**job.labels, **labels},
        annotations={**_AUTOSCALER_ANNOTATIONS, **_scrape_annotations(job), **job.annotations},
        ports=_metrics_port(job),
        env=_environment(job, run),
        mounts=_mounts(job, args.claims),
        volumes=additional_volumes(job.volumes),
        rdma=Rdma(**job.rdma.model_dump()) if job.rdma else None,
        disk=job.ephemeral_storage,
        node_selector=job.node_labels,
        spread=even_spread(selector, strict=job.strict_spread) if spread else (),
        affinity=_affinity(job, selector),
        host_network=job.host_network,
        deadline_seconds=job.attempt_deadline_seconds,
    )


def _launcher_pod(job: TrainingJobSettings, pod: Pod) -> Pod:
    """Return the pod of the MPI launcher or Ray head, without GPUs and without placement rules."""
    resources = job.launcher or LauncherSettings()
    return replace(
        pod,
        cpu=resources.cpu,
        memory=resources.memory,
        shm=default_shm(1, resources.memory),
        disk=None,
        labels={**pod.labels, **LAUNCHER_LABEL},
        gpus=0,
        rdma=None,
        node_selector={},
        spread=(),
        affinity={},
        annotations={**_AUTOSCALER_ANNOTATIONS, **job.annotations},
        ports={},
    )


def _step_pod(args: TrainingJobArgs, run: str, name: str, pod: Pod) -> Pod:
    job = args.job
    step = job.steps[name]
    mounts = [
        replace(mount, read_only=False)
        if step.writes_datasets and mount.name == DATASETS_VOLUME
        else mount
        for mount in pod.mounts
    ]
    return replace(
        pod,
        container="step",
        command=_step_command(args, run, name),
        cpu=step.cpu,
        memory=step.memory,
        shm=default_shm(max(step.gpus, 1), step.memory),
        disk=None,
        gpus=step.gpus,
        labels={**job.labels, **_labels(args.key, run, "training" if step.gpus else "step")},
        env={**_run_variables(job, run), **variables_from(job.env_from), **job.env, **step.env},
        mounts=mounts,
        rdma=None,
        node_selector=job.node_labels if step.gpus else {},
        spread=(),
        affinity={},
        host_network=False,
        annotations=job.annotations,
        ports={},
    )


def _step_command(args: TrainingJobArgs, run: str, name: str) -> list[str]:
    """Return a step's command, prefixed with the program for conditions, inputs and outputs."""
    job = args.job
    step = job.steps[name]
    conditional = [other for other in preceding_steps(job, name) if _has_condition(job, other)]
    options = [
        *(f"--after={other}" for other in sorted(conditional)),
        *(f"--when={metric} {limit}" for metric, limit in step.when.items()),
    ]
    if step.outputs:
        relevant = sorted({*job.env, *step.env})
        options += [
            *(f"--output={output}={type_}" for output, type_ in step.outputs.items()),
            f"--image={args.image_identity}",
            *(f"--env={variable}" for variable in relevant),
            *([] if step.cache else ["--no-cache"]),
        ]
    return [*_step_program(run, name, options, step.inputs), *step.command]


def _step_program(
    run: str, name: str, options: Sequence[str] = (), inputs: Mapping[str, str] | None = None
) -> list[str]:
    """Return the prefix that runs `workload.step`, or [] if there are no options or inputs."""
    arguments = [f"--input={key}={reference}" for key, reference in (inputs or {}).items()]
    if not options and not arguments:
        return []
    return [
        *("python3", "-m", "workload.step"),
        f"--run={CHECKPOINTS_PATH}/{run}",
        f"--name={name}",
        *options,
        *arguments,
        "--",
    ]


def _has_condition(job: TrainingJobSettings, name: str) -> bool:
    return name in job.steps and bool(job.steps[name].when)


def _network_topology(job: TrainingJobSettings) -> Manifest:
    topology = job.network_topology
    if topology is None:
        return {}
    return compact({"mode": topology.mode, "highestTierAllowed": topology.highest_tier})


def _metrics_port(job: TrainingJobSettings) -> dict[str, int]:
    return {} if job.metrics_port is None else {"metrics": job.metrics_port}


def _scrape_annotations(job: TrainingJobSettings) -> dict[str, str]:
    """Return the annotations for a Prometheus server that does not use PodMonitors."""
    return {
        f"{PROMETHEUS_ANNOTATION}{name}": value
        for port in _metrics_port(job).values()
        for name, value in {"scrape": "true", "port": str(port), "path": "/metrics"}.items()
    }


def _command(job: TrainingJobSettings, run: str) -> list[str]:
    if job.torchtitan is not None:
        return ["-m", PROGRAM, *job.torchtitan.to_args()]
    if job.hyperparameters is None:
        return list(job.command or [])
    config = job.hyperparameters.model_copy(update={"run_dir": f"{CHECKPOINTS_PATH}/{run}"})
    inputs = [f"{flag_of(name)}=$(inputs.{name})" for name in job.inputs]
    return ["-m", KINDS[job.kind].program, *config.to_args(), *inputs]


def _environment(job: TrainingJobSettings, run: str) -> dict[str, Any]:
    variables: dict[str, Any] = {"RUN_NAME": run, **NODE_NAME}
    if job.hyperparameters is None:
        variables = _run_variables(job, run)
    if job.omp_threads is not None:
        variables["OMP_NUM_THREADS"] = str(job.omp_threads)
    if job.nccl is not None:
        variables |= job.nccl.to_environment(job.rdma.interface if job.rdma else None)
    return {**variables, **variables_from(job.env_from), **job.env}


def _run_variables(job: TrainingJobSettings, run: str) -> dict[str, Any]:
    """Return the variables that describe the run to a custom command.

    Without TORCH_ELASTIC_SHUTDOWN_TIMEOUT, torchrun kills its processes 30 seconds after SIGTERM.
    """
    return {
        "RUN_NAME": run,
        "RUN_DIR": f"{CHECKPOINTS_PATH}/{run}",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(job.grace_seconds),
    }


def _labels(key: str, run: str, workload: str) -> dict[str, str]:
    return {**standard_labels(key, run), WORKLOAD_LABEL: workload, RUN_LABEL: run}


def _mounts(job: TrainingJobSettings, claims: Mapping[str, Any]) -> list[Mount]:
    mounts = [Mount(name=CHECKPOINTS_VOLUME, claim=claims[job.checkpoints], path=CHECKPOINTS_PATH)]
    if job.datasets is not None:
        claim = claims[job.datasets]
        mounts.append(Mount(name=DATASETS_VOLUME, claim=claim, path=DATASETS_PATH, read_only=True))
    if job.notebook is not None:
        mounts.append(Mount(name=HOMES_VOLUME, claim=claims[job.notebook.home], path=HOMES_PATH))
    mounts += [
        Mount(name=name, claim=claims[volume.claim], path=volume.path, read_only=volume.read_only)
        for name, volume in job.volumes.items()
        if volume.claim is not None
    ]
    return mounts


def _affinity(job: TrainingJobSettings, pod_labels: Mapping[str, str]) -> Manifest:
    affinity: Manifest = {}
    if job.pack is not None:
        affinity |= shared_label_affinity(pod_labels, job.pack.label, required=job.pack.required)
    if job.whole_node:
        affinity |= exclusive_node_affinity(WORKLOAD_LABEL, LAUNCHER_LABEL)
    return affinity
