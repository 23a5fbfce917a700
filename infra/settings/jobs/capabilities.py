"""What a kind of job cannot do, in one table: the preview and docs/jobs.md are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from infra.settings.jobs.kinds import KINDS, LED, JobKind

if TYPE_CHECKING:
    from infra.settings.training import TrainingJobSettings

_VOLCANO_JOBS: Final[tuple[JobKind, ...]] = ("volcano", "mpi", "tensorflow", "plain")


def _all_but(*kinds: JobKind) -> tuple[JobKind, ...]:
    return tuple(kind for kind in KINDS if kind not in kinds)


@dataclass(frozen=True)
class Capability:
    """A setting (or one value of it) that only some kinds can follow.

    `asked` gives the value found where a job asks for it, and None otherwise. `instead` says what
    to write with the kinds that cannot.
    """

    title: str
    key: str
    kinds: tuple[JobKind, ...]
    asked: Callable[[TrainingJobSettings], Any]
    instead: str


def _written(key: str) -> Callable[[TrainingJobSettings], Any]:
    return lambda job: getattr(job, key)


CAPABILITIES: Final[tuple[Capability, ...]] = (
    Capability(
        "this repository's program",
        "hyperparameters",
        _all_but("ray", "plain"),
        lambda job: sorted(job.hyperparameters.model_fields_set) if job.hyperparameters else None,
        "write command instead",
    ),
    Capability(
        "elastic size",
        "min_nodes",
        ("volcano", "pytorch", "plain"),
        _written("min_nodes"),
        "leave it out, and the job starts with all of its pods or none",
    ),
    Capability(
        "deadline of the run",
        "deadline_seconds",
        ("indexed", "pytorch", "ray"),
        _written("deadline_seconds"),
        "write attempt_deadline_seconds where the kind can do that, or leave it out",
    ),
    Capability(
        "deadline of an attempt",
        "attempt_deadline_seconds",
        _all_but("ray"),
        _written("attempt_deadline_seconds"),
        "write deadline_seconds",
    ),
    Capability(
        "removal after its end",
        "ttl_seconds",
        _all_but("trainjob", "ray"),
        _written("ttl_seconds"),
        "leave it out and remove the finished run with kubectl",
    ),
    Capability(
        "suspended by a setting",
        "suspend",
        ("indexed", "pytorch", "trainjob", "ray"),
        lambda job: True if job.suspend else None,
        "suspend a running Volcano Job with `vcctl job suspend`",
    ),
    Capability(
        "success when all pods end well",
        "success",
        ("volcano", "indexed", "trainjob", "tensorflow", "plain"),
        lambda job: "all" if job.success == "all" else None,
        "leave it out, and the kind's own rule holds",
    ),
    Capability(
        "success when the first pod ends well",
        "success",
        ("volcano", "indexed", "pytorch", "mpi"),
        lambda job: "first" if job.success == "first" else None,
        "leave it out, and the kind's own rule holds",
    ),
    Capability(
        "exit codes that end the run",
        "fatal_exit_codes",
        _all_but("pytorch", "ray"),
        lambda job: (
            list(job.fatal_exit_codes) if "fatal_exit_codes" in job.model_fields_set else None
        ),
        "leave it out, and every failure is retried",
    ),
    Capability(
        "steps before and after the training",
        "steps",
        _VOLCANO_JOBS,
        lambda job: sorted(job.steps) or None,
        "write several jobs, and start each when the one before has ended",
    ),
    Capability(
        "resources of the launcher or head",
        "launcher",
        LED,
        lambda job: job.launcher.model_dump() if job.launcher else None,
        "leave it out: all pods of this kind are equal",
    ),
)


def can(key: str, kind: JobKind) -> bool:
    """Whether the kind can follow the setting, whatever its value."""
    return all(kind in capability.kinds for capability in CAPABILITIES if capability.key == key)


def _or(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def missing_capabilities(job: TrainingJobSettings) -> Iterator[str]:
    """A sentence for everything that the job asks for and its kind cannot do."""
    for capability in CAPABILITIES:
        value = capability.asked(job)
        if value is not None and job.kind not in capability.kinds:
            yield (
                f"sets {capability.key} to {value!r}, which kind {job.kind!r} cannot do: write "
                f"kind {_or(capability.kinds)}, or {capability.instead}"
            )
