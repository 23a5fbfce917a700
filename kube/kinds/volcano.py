"""API resources of Volcano, and the objects and names that they require."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kube.kinds.record import Resource, State
from kube.names import BATCH_GROUP, BUS_GROUP, FLOW_GROUP

JOB: Final = Resource(
    group=BATCH_GROUP,
    version="v1alpha1",
    kind="Job",
    plural="jobs",
    title="Volcano Job",
    phase=("state", "phase"),
    states={
        "Completed": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Terminated": State.FAILED,
        "Terminating": State.FAILED,
        # `vcctl job suspend` aborts a job, and `vcctl job resume` starts it again.
        "Aborted": State.SUSPENDED,
        "Aborting": State.SUSPENDED,
        "Restarting": State.RESTARTING,
        "Running": State.RUNNING,
        "Completing": State.RUNNING,
    },
    restarts=("retryCount",),
)

FLOW: Final = Resource(
    group=FLOW_GROUP,
    version="v1alpha1",
    kind="JobFlow",
    plural="jobflows",
    title="Volcano JobFlow",
    phase=("state", "phase"),
    # Volcano reports Running even if a step has failed, so the state is derived from the steps.
    states={"Succeed": State.SUCCEEDED},
)
"""The resource of a run with steps. A JobFlow creates a Volcano Job for each step."""

TEMPLATE: Final = Resource(
    group=FLOW.group,
    version=FLOW.version,
    kind="JobTemplate",
    plural="jobtemplates",
    title="Volcano JobTemplate",
)
"""The resource of a step, from which the JobFlow creates a Volcano Job."""

COMMAND: Final = Resource(
    group=BUS_GROUP, version="v1alpha1", kind="Command", plural="commands", title="Volcano Command"
)
"""The resource of commands to the job controller, which deletes a command after executing it."""


def command(job: Mapping[str, Any], *, suspended: bool, name: str | None = None) -> dict[str, Any]:
    """Return the command that suspends or resumes a Job, like `vcctl job suspend` and `resume`.

    If `name` is None, the API server generates a name. While a command is pending, the API server
    rejects another command with the same name.
    """
    metadata = job["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    action = "AbortJob" if suspended else "ResumeJob"
    named = {"name": name} if name else {"generateName": f"{metadata['name']}-{action.lower()}-"}
    return {
        "apiVersion": COMMAND.api_version,
        "kind": COMMAND.kind,
        "metadata": {**named, "namespace": metadata["namespace"], "ownerReferences": [owner]},
        "target": owner,
        "action": action,
    }


TRAINING_STEP: Final = "train"
"""Name of the training step."""


def template_name(run: str, step: str) -> str:
    """Return the name of a step's JobTemplate.

    A run is named `<key>-<hash>`, and its templates are named `<hash>-<step>`. Template names
    must be short, because a JobFlow names its jobs `<flow>-<template>` and the length of job names
    is limited.
    """
    return f"{run.rpartition('-')[2]}-{step}"


ATTEMPT_FAILED: Final = 64
"""Exit code (EX_USAGE) of the program for scheduled runs if a run cannot be started or fails."""


def attempt_name(run: str, job: str) -> str:
    """Return the name of the run that a CronJob's Job starts, `<key>-<8 hex digits>`."""
    digits = hashlib.sha256(f"{run}/{job}".encode()).hexdigest()[:8]
    return f"{run.rpartition('-')[0]}-{digits}"


def flow_spec(run: str, after: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the specification of a JobFlow. `after` maps steps to the steps that they wait for."""
    flows: list[dict[str, Any]] = []
    for name, earlier in after.items():
        flow: dict[str, Any] = {"name": template_name(run, name)}
        if earlier:
            flow["dependsOn"] = {"targets": [template_name(run, other) for other in earlier]}
        flows.append(flow)
    return {"jobRetainPolicy": "retain", "flows": flows}


def job_prefix(run: str) -> str:
    """Return the name prefix of the Volcano Jobs for a run's steps."""
    return f"{run}-{template_name(run, '')}"


def with_ancestors(queue: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return a queue and its ancestors, starting with the queue.

    The limits of the ancestors also apply to the queue. If the parents form a cycle, each queue
    of the cycle appears once.
    """
    found: list[str] = []
    name: str | None = queue
    while name and name not in found:
        found.append(name)
        name = parents.get(name)
    return found
