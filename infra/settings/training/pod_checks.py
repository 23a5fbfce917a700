"""Checks of the variables, volumes, annotations and deadlines that a job adds to its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from infra.settings.volumes import RESERVED_VOLUMES, disk_problem, duplicate_paths
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

if TYPE_CHECKING:
    from infra.settings.training.job import TrainingJobSettings

_RESERVED_ANNOTATIONS: Final = ("scheduling.k8s.io/", "scheduling.volcano.sh/", "volcano.sh/")
"""Prefixes of annotations that determine a pod's placement. Only the builders of the job kinds may
set them."""

_PROVIDED: Final = "the stack or the kind of job provides: leave it out"
_RESERVED_VARIABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RUN_NAME", "RUN_DIR", "RANK", "LOCAL_RANK"), _PROVIDED),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), _PROVIDED),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), _PROVIDED),
    "LD_PRELOAD": "changes every program in the pod: set it in the image's entry point",
}


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
    """Yield an error message for each problem with a job of kind `notebook`."""
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
            "sets on_change to 'keep', but two notebooks would share a home directory: remove "
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
