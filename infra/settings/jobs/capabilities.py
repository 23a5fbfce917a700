"""Settings that only some job kinds support, for the preview and the table in docs/jobs.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kube.kinds import KINDS, JobKind, kinds_that_support
from kube.kinds.record import Capability

if TYPE_CHECKING:
    from infra.settings.training import TrainingJobSettings


@dataclass(frozen=True)
class LimitedSetting:
    """A setting, or one value of it, that only some kinds support.

    `requested` returns the value if a job requests the capability, None otherwise. `remedy` is what
    to write with other kinds.
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
        """Kinds that support it."""
        return kinds_that_support(self.capability)


def _value(key: str) -> Callable[[TrainingJobSettings], Any]:
    return lambda job: getattr(job, key)


LIMITED_SETTINGS: Final = (
    LimitedSetting(
        "this repository's program",
        "hyperparameters",
        lambda job: sorted(job.hyperparameters.model_fields_set) if job.hyperparameters else None,
        "write command instead",
    ),
    LimitedSetting(
        "elastic size",
        "min_nodes",
        _value("min_nodes"),
        "leave it out, and the job starts with all of its pods or none",
    ),
    LimitedSetting(
        "deadline of the run",
        "deadline_seconds",
        _value("deadline_seconds"),
        "write attempt_deadline_seconds if the kind supports it, or leave it out",
    ),
    LimitedSetting(
        "deadline of an attempt",
        "attempt_deadline_seconds",
        _value("attempt_deadline_seconds"),
        "write deadline_seconds",
    ),
    LimitedSetting(
        "removal after its end",
        "ttl_seconds",
        _value("ttl_seconds"),
        "leave it out and remove the finished run with kubectl",
    ),
    LimitedSetting(
        "suspension by a setting",
        "suspend",
        lambda job: True if job.suspend else None,
        "suspend a running Volcano Job with `vcctl job suspend`",
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
        "leave it out, and every failure is retried",
    ),
    LimitedSetting(
        "steps before and after the training",
        "steps",
        lambda job: sorted(job.steps) or None,
        "write several jobs, and start each when the one before has succeeded",
    ),
    LimitedSetting(
        "resources of the launcher or head",
        "launcher",
        lambda job: job.launcher.model_dump() if job.launcher else None,
        "leave it out: all pods of this kind are equal",
    ),
)


def missing_capabilities(job: TrainingJobSettings) -> Iterator[str]:
    """Yield a sentence for each setting of the job that its kind does not support."""
    for limited in LIMITED_SETTINGS:
        value = limited.requested(job)
        if value is not None and limited.capability not in KINDS[job.kind].capabilities:
            *others, last = limited.kinds
            choice = f"{', '.join(others)} or {last}" if others else last
            yield (
                f"sets {limited.key} to {value!r}, which kind {job.kind!r} does not support: write "
                f"kind {choice}, or {limited.remedy}"
            )
