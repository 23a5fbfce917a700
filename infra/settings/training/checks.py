"""Checks of the settings of one training job.

Each problem is a sentence without its subject (the job), such as `has no program: …`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from infra.settings.problems import either
from infra.settings.training.steps import step_problems
from infra.settings.volumes import RESERVED_VOLUMES, disk_problem, duplicate_paths
from kube.kinds import KINDS, JobKind, kinds_that_support
from kube.kinds.record import TRAINING_PROGRAM, Capability
from kube.names import (
    DATASETS_PATH,
    GPU_COUNT_LABEL,
    GPU_PRODUCT_LABEL,
    HOMES_PATH,
    HOMES_VOLUME,
    PROGRAM_PATH,
    SECRETS_PATH,
    TOKEN_VOLUME,
)
from kube.shared_memory import shm_problem

if TYPE_CHECKING:
    from infra.settings.training.job import TrainingJobSettings
    from infra.settings.training.torchtitan import TorchtitanSettings


PROGRAMS: Final = ("hyperparameters", "torchtitan", "command")
"""Settings that define what the pods run. Every job except a notebook sets one of them."""
_RESERVED_ANNOTATIONS: Final = ("scheduling.k8s.io/", "scheduling.volcano.sh/", "volcano.sh/")
"""Prefixes of annotations that determine a pod's placement. Only the builders of the job kinds may
set them."""

_PROVIDED: Final = "the stack or the kind of job provides: leave it out"
_RESERVED_VARIABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RUN_NAME", "RUN_DIR", "RANK", "LOCAL_RANK"), _PROVIDED),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), _PROVIDED),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), _PROVIDED),
    "LD_PRELOAD": "affects every program in the pod: set it in the image's entry point",
}


def job_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield each problem in the settings of the job, with a fix."""
    yield from _unsupported_settings(job)
    yield from _program_problems(job)
    yield from _name_problems(job)
    yield from _size_problems(job)
    yield from _network_problems(job)
    yield from pod_problems(job)
    yield from step_problems(job)
    yield from notebook_problems(job)


@dataclass(frozen=True)
class LimitedSetting:
    """A setting, or one value of a setting, that only some kinds of jobs support.

    `requested` returns the value if a job requests the capability, and None otherwise. `remedy` is
    the advice for jobs of kinds that do not support it.
    """

    title: str
    capability: Capability
    requested: Callable[[TrainingJobSettings], Any]
    remedy: str

    @property
    def key(self) -> str:
        """Name of the setting."""
        return self.capability.partition(":")[0]

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """Kinds that support the setting."""
        return kinds_that_support(self.capability)


def _value(key: str) -> Callable[[TrainingJobSettings], Any]:
    return lambda job: getattr(job, key)


LIMITED_SETTINGS: Final = (
    LimitedSetting(
        "this repository's program",
        "hyperparameters",
        lambda job: sorted(job.hyperparameters.model_fields_set) if job.hyperparameters else None,
        "set command instead",
    ),
    LimitedSetting(
        "torchtitan",
        "torchtitan",
        lambda job: job.torchtitan.config if job.torchtitan else None,
        "set command instead",
    ),
    LimitedSetting(
        "elastic size",
        "min_nodes",
        _value("min_nodes"),
        "leave it out (the job then starts with all of its pods or none)",
    ),
    LimitedSetting(
        "deadline of the run",
        "deadline_seconds",
        _value("deadline_seconds"),
        "set attempt_deadline_seconds if the kind supports it, or leave it out",
    ),
    LimitedSetting(
        "deadline of an attempt",
        "attempt_deadline_seconds",
        _value("attempt_deadline_seconds"),
        "set deadline_seconds",
    ),
    LimitedSetting(
        "suspending through a setting",
        "state: suspended",
        lambda job: "suspended" if job.state == "suspended" else None,
        "suspend a running Volcano Job with `python -m gpu_platform suspend`",
    ),
    LimitedSetting(
        "stopping through a setting",
        "state: stopped",
        lambda job: "stopped" if job.state == "stopped" else None,
        "set state suspended, which also terminates the pods, if the kind supports it",
    ),
    LimitedSetting(
        "success when all pods succeed",
        "success: all",
        lambda job: "all" if job.success == "all" else None,
        "leave it out to use the kind's default",
    ),
    LimitedSetting(
        "success when the first pod succeeds",
        "success: first",
        lambda job: "first" if job.success == "first" else None,
        "leave it out to use the kind's default",
    ),
    LimitedSetting(
        "exit codes that end the run",
        "fatal_exit_codes",
        lambda job: (
            list(job.fatal_exit_codes) if "fatal_exit_codes" in job.model_fields_set else None
        ),
        "leave it out (every failure is then retried)",
    ),
    LimitedSetting(
        "steps before and after training",
        "steps",
        lambda job: sorted(job.steps) or None,
        "define several jobs, and start each when the previous one has succeeded",
    ),
    LimitedSetting(
        "outputs of steps as inputs of the job",
        "inputs",
        lambda job: dict(job.inputs) or None,
        "read the outputs in a step",
    ),
    LimitedSetting(
        "start on a schedule",
        "schedule",
        lambda job: job.schedule.cron if job.schedule else None,
        "increase `attempt` for each new run",
    ),
    LimitedSetting(
        "resources of the launcher or head",
        "launcher",
        lambda job: job.launcher.model_dump() if job.launcher else None,
        "leave it out (all pods of this kind are identical)",
    ),
    LimitedSetting(
        "JupyterLab instead of a program",
        "notebook",
        lambda job: job.notebook.model_dump(exclude_unset=True) if job.notebook else None,
        "leave it out",
    ),
)


def _unsupported_settings(job: TrainingJobSettings) -> Iterator[str]:
    for limited in LIMITED_SETTINGS:
        value = limited.requested(job)
        if value is not None and limited.capability not in KINDS[job.kind].capabilities:
            yield (
                f"sets {limited.key} to {value!r}, which kind {job.kind!r} does not support: set "
                f"kind {either(limited.kinds)}, or {limited.remedy}"
            )


def _program_problems(job: TrainingJobSettings) -> Iterator[str]:
    if job.kind == "notebook":
        return
    programs = [name for name in PROGRAMS if getattr(job, name) is not None]
    if not programs:
        yield f"has no program: set {either(PROGRAMS)}"
    elif len(programs) > 1:
        yield f"sets {' and '.join(programs)}: keep one of them"
    if job.torchtitan is not None:
        yield from _torchtitan_problems(job, job.torchtitan)
    if job.hyperparameters is not None and KINDS[job.kind].program != TRAINING_PROGRAM:
        for problem in job.hyperparameters.tensorflow_problems():
            yield f"has invalid hyperparameters: {problem}"


def _torchtitan_problems(job: TrainingJobSettings, torchtitan: TorchtitanSettings) -> Iterator[str]:
    if job.image == "training":
        yield (
            "sets torchtitan, which the 'training' image does not contain: set image to the key "
            "of an image that is built with training/titan/Dockerfile"
        )
    if job.min_nodes not in (None, job.nodes):
        yield (
            "sets torchtitan and min_nodes, but torchtitan's parallelism needs all pods: remove "
            "min_nodes"
        )
    elif problem := torchtitan.size_problem(job.nodes * job.gpus_per_node):
        yield problem


def _name_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield a problem if `run` starts with a digit and Services are named after the run."""
    has_route = job.notebook is not None and job.notebook.route is not None
    without_service = {"several pods": job.nodes == 1, "route": not has_route}
    if (
        job.run is not None
        and job.run[0].isdigit()
        and not without_service.get(KINDS[job.kind].service)
    ):
        yield (
            f"sets run to {job.run!r}, but the names of the run's Services begin with it, and "
            "a Service name must begin with a letter: use a name that begins with a letter"
        )


def _size_problems(job: TrainingJobSettings) -> Iterator[str]:
    if job.min_nodes is not None and job.min_nodes > job.nodes:
        yield (
            f"sets min_nodes to {job.min_nodes}, more than nodes ({job.nodes}): set it to at "
            f"most {job.nodes}"
        )
    if job.node_gpus is not None and job.node_gpus < job.gpus_per_node:
        yield (
            f"sets gpus_per_node to {job.gpus_per_node}, more than node_gpus ({job.node_gpus}): "
            f"set gpus_per_node to at most {job.node_gpus}"
        )
    for name, step in job.steps.items():
        if job.node_gpus is not None and step.gpus > job.node_gpus:
            yield (
                f"sets steps.{name}.gpus to {step.gpus}, more than node_gpus ({job.node_gpus}), "
                "which also selects the nodes for steps: set "
                f"steps.{name}.gpus to at most {job.node_gpus}"
            )
    if problem := shm_problem(job.shared_memory, job.memory):
        yield problem
    if job.strict_spread and not job.spread:
        yield "sets strict_spread, but spread is false: remove spread"
    if job.whole_node and not job.spread:
        yield "sets whole_node, which spreads the pods, but spread is false: remove spread"


def _network_problems(job: TrainingJobSettings) -> Iterator[str]:
    if job.rdma is not None and job.nodes == 1:
        yield "sets rdma, but has a single node: remove rdma, or set nodes above 1"
    communicates = job.nodes > 1 or KINDS[job.kind].has_launcher
    if communicates and job.metrics_port in KINDS[job.kind].ports:
        yield (
            f"sets metrics_port to {job.metrics_port}, which is in use in the pods of {job.kind!r} "
            "jobs: use another port, such as 9400"
        )
    if job.nccl is None:
        return
    if job.nodes == 1:
        yield "sets nccl, but has a single node, which needs no network: remove nccl"
    if job.nccl.uses_rdma and job.rdma is None:
        yield (
            f"sets nccl.network to {job.nccl.network!r}, which needs rdma: set rdma.resource "
            "and rdma.interface, or set network to tcp"
        )
    if not job.nccl.uses_rdma and job.rdma is not None:
        yield (
            "sets rdma, which nccl.network 'tcp' does not use: remove rdma, or set network "
            "to infiniband or roce"
        )
    variables = job.nccl.to_environment("eth0").keys()
    for path in ("env", "env_from"):
        if conflicts := sorted(variables & getattr(job, path).keys()):
            yield f"sets {conflicts[0]} in {path}, which nccl also sets: set it in only one of them"


def pod_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield an error message for each problem with the job's pods."""
    for name in sorted(_RESERVED_VARIABLES.keys() & {*job.env, *job.env_from}):
        yield f"sets {name}, which {_RESERVED_VARIABLES[name]}"
    if (
        job.attempt_deadline_seconds is not None
        and job.attempt_deadline_seconds < job.grace_seconds
    ):
        yield (
            f"sets attempt_deadline_seconds to {job.attempt_deadline_seconds}, less than "
            f"grace_seconds ({job.grace_seconds}): set a larger value"
        )
    duplicates = set(job.env) & set(job.env_from)
    if duplicates:
        yield f"sets {sorted(duplicates)[0]} in both env and env_from: set it in one of them"
    for name in job.volumes:
        if name in RESERVED_VOLUMES:
            yield f"has a volume {name!r}, which is a reserved name: choose another"
    for volume in job.volumes.values():
        in_datasets = f"{volume.path.rstrip('/')}/".startswith(f"{DATASETS_PATH}/")
        if in_datasets and job.datasets is not None:
            yield (
                f"has a volume at {volume.path}, but the datasets claim ({job.datasets!r}) is "
                f"mounted at {DATASETS_PATH}: use another path, or remove datasets"
            )
        if volume.path.rstrip("/") == PROGRAM_PATH and job.command is None:
            yield (
                f"has a volume at {volume.path}, which would hide the program in the image: choose "
                f"another path, such as {PROGRAM_PATH}/custom"
            )
    for path in duplicate_paths(job.volumes):
        yield f"has two volumes at {path}: use a different path for each"
    if problem := disk_problem(job.ephemeral_storage, job.volumes):
        yield problem
    yield from _download_problems(job)
    for key, label in (("gpu_product", GPU_PRODUCT_LABEL), ("node_gpus", GPU_COUNT_LABEL)):
        value, selected = getattr(job, key), job.node_selector.get(label)
        if value is not None and selected not in (None, str(value)):
            yield (
                f"sets {key} to {value!r}, but node_selector.{label} to {selected!r}: remove one "
                "of them"
            )
    for name in job.annotations:
        if name.startswith(_RESERVED_ANNOTATIONS):
            yield f"sets annotations.{name}, which determines the placement: leave it out"


def _download_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield the reasons why the program could not download its data set."""
    if job.hyperparameters is None or job.hyperparameters.data_url is None:
        return
    writable = [volume.path.rstrip("/") for volume in job.volumes.values() if not volume.read_only]
    if job.datasets is not None:
        yield (
            f"sets hyperparameters.data_url, but datasets {job.datasets!r} is mounted read-only: "
            "remove one of them"
        )
    elif DATASETS_PATH not in writable:
        yield (
            f"sets hyperparameters.data_url, but has no writable volume at {DATASETS_PATH}: set "
            f"volumes: {{data: {{path: {DATASETS_PATH}, scratch: 100Gi}}}}"
        )


def notebook_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield an error message for each problem with a `notebook` job."""
    if job.kind != "notebook":
        return
    if job.notebook is None:
        yield (
            "is of kind 'notebook', but has no notebook settings: set notebook.home and "
            "notebook.token_secret"
        )
    if job.command is not None:
        yield "sets command, but kind 'notebook' starts JupyterLab: remove command"
    if job.nodes != 1:
        yield f"sets nodes to {job.nodes}, but a notebook is a single pod: remove nodes"
    if "on_change" in job.model_fields_set and job.on_change == "keep":
        yield (
            "sets on_change to 'keep', but two notebooks would then share a home directory: remove "
            "on_change"
        )
    for name in sorted({*job.env, *job.env_from}):
        if name == "HOME" or name.startswith("JUPYTER_"):
            yield f"sets {name}, which kind 'notebook' determines: remove it"
    for name, volume in job.volumes.items():
        path = f"{volume.path.rstrip('/')}/"
        if name in (HOMES_VOLUME, TOKEN_VOLUME):
            yield f"has a volume {name!r}, which is a reserved name: choose another"
        if path.startswith((f"{HOMES_PATH}/", f"{SECRETS_PATH}/")):
            yield f"has a volume at {volume.path}, which is reserved in notebooks: choose another"
