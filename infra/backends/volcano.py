"""What all kinds share that are a Volcano Job, or where there are steps a JobFlow of such Jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from infra.backends.gang import Gang, Step, metadata
from infra.manifests import Manifest, compact
from infra.pods import Pod, pod_template
from infra.settings.jobs.steps import TRAINING_STEP
from infra.step_names import template_name

SERVICE_PLUGINS: Final[Mapping[str, list[str]]] = {
    "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
    "env": [],
}
"""Names that resolve before the pods are ready, and the index of each pod."""

COMPLETES_THE_JOB: Final = [{"event": "TaskCompleted", "action": "CompleteJob"}]
"""Policy of a task whose success is that of the whole job. Never one of the job: it would end
the peers of whichever task is first."""


def placed(gang: Gang, pod: Pod) -> Manifest:
    """The pod's template, as Volcano's tasks need it."""
    return pod_template(
        replace(
            pod,
            scheduler="volcano",
            restart_policy="Never",
            priority_class=gang.priority_class,
        )
    )


def build(
    gang: Gang, tasks: Sequence[Manifest], plugins: Mapping[str, list[str]] | None
) -> list[Manifest]:
    """The Volcano Job of these tasks, or JobTemplates and the JobFlow that orders them.

    A task's own `dependsOn` is no order of steps: Volcano takes a task as reached when its pods are
    ready, not when they have ended, and inside one gang it would wait for ever.
    """
    spec = _spec(gang, tasks, plugins)
    if not gang.steps:
        return [_object("batch.volcano.sh/v1alpha1", "Job", metadata(gang), spec)]
    bodies = {TRAINING_STEP: spec} | {step.name: _step_spec(gang, step) for step in gang.steps}
    labels = {step.name: dict(step.pod.labels) for step in gang.steps}
    order = {TRAINING_STEP: gang.after} | {step.name: step.after for step in gang.steps}
    described = metadata(gang)
    templates = [
        _object(
            "flow.volcano.sh/v1alpha1",
            "JobTemplate",
            {
                **described,
                "name": template_name(gang.name, name),
                "labels": labels.get(name, described["labels"]),
            },
            body,
        )
        for name, body in bodies.items()
    ]
    flows = [
        compact(
            {
                "name": template_name(gang.name, name),
                "dependsOn": compact(
                    {"targets": [template_name(gang.name, other) for other in order[name]] or None}
                ),
            }
        )
        for name in order
    ]
    flow = {"jobRetainPolicy": "retain", "flows": flows}
    return [*templates, _object("flow.volcano.sh/v1alpha1", "JobFlow", described, flow)]


def _spec(
    gang: Gang, tasks: Sequence[Manifest], plugins: Mapping[str, list[str]] | None
) -> Manifest:
    replicas = sum(task["replicas"] for task in tasks)
    return compact(
        {
            "schedulerName": "volcano",
            "queue": gang.queue,
            "minAvailable": replicas - gang.nodes + gang.fewest,
            # Pods above the minimum may still wait for room when the others have ended well.
            "minSuccess": gang.fewest if gang.is_elastic else None,
            "maxRetry": gang.retries,
            "priorityClassName": gang.priority_class,
            "ttlSecondsAfterFinished": gang.ttl_seconds,
            "networkTopology": dict(gang.network_topology),
            "plugins": dict(plugins) if plugins else None,
            "policies": _policies(gang),
            "tasks": list(tasks),
        }
    )


def _policies(gang: Gang) -> list[Manifest]:
    # The first policy that matches decides, so the exit codes stand before the events. An elastic
    # gang goes on without a pod that had to leave, and gets it back when there is room.
    events = ["PodFailed"] if gang.is_elastic else ["PodEvicted", "PodFailed"]
    return [
        *({"exitCode": code, "action": "TerminateJob"} for code in gang.fatal_exit_codes),
        {"events": events, "action": "RestartJob"},
    ]


def _step_spec(gang: Gang, step: Step) -> Manifest:
    alone = replace(gang, nodes=1, min_nodes=None, network_topology={})
    task = {"name": "step", "replicas": 1, "template": placed(gang, step.pod)}
    return _spec(alone, [task], None)


def _object(api_version: str, kind: str, described: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": described, "spec": spec}
