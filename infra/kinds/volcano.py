"""The `volcano`, `plain` and `tensorflow` kinds, and functions for the other Volcano Job kinds.

Volcano places all pods of a gang or none, and restarts them together. An elastic gang needs only
its minimum number of pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from infra.kinds.gang import Gang, Step, command, command_variables, metadata, volcano_pod_template
from infra.manifests import Manifest, compact
from kube.kinds.record import RENDEZVOUS_PORT, Resource
from kube.kinds.volcano import COMMAND, FLOW, JOB, TEMPLATE, TRAINING_STEP, flow_spec, template_name

SERVICE_PLUGINS: Final[Mapping[str, list[str]]] = {
    "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
    "env": [],
}
"""Plugins that publish the pods' host names before the pods are ready, and set a variable with the
pod's index."""

COMPLETE_JOB_POLICIES: Final = [{"event": "TaskCompleted", "action": "CompleteJob"}]
"""Task policies that complete the job when the task succeeds. As policies of the
job, they would complete it when any task succeeds."""

_TASK_RETRIES: Final = 3
"""Volcano's default for a task's `maxRetry`, set explicitly. Otherwise, the mutating webhook would
add the field when the job is created. Applying the same manifest again would then remove the field,
and the validating webhook would reject this change."""

_PYTORCH_PLUGINS: Final = {
    "pytorch": ["--master=master", "--worker=worker", f"--port={RENDEZVOUS_PORT}"],
    **SERVICE_PLUGINS,
}
_TENSORFLOW_PLUGINS: Final = {"tensorflow": ["--worker=worker", "--port=2222"], **SERVICE_PLUGINS}


def build(gang: Gang) -> list[Manifest]:
    """Return the Volcano Job, or the objects that create it (see `volcano_objects`).

    The Job has a master with rank 0, and workers with the same template.
    """
    pod = replace(gang.pod, command=command(gang), env={**command_variables(gang), **gang.pod.env})
    template = volcano_pod_template(gang, pod)
    master = {
        "name": "master",
        "replicas": 1,
        # Rank 0 hosts the rendezvous, so an elastic gang cannot run without it.
        "minAvailable": 1 if gang.is_elastic else None,
        "policies": COMPLETE_JOB_POLICIES if gang.success == "first" else None,
        "template": template,
    }
    worker = {
        "name": "worker",
        "replicas": gang.size - 1,
        "minAvailable": gang.minimum - 1 if gang.is_elastic else None,
        "template": template,
    }
    tasks = [compact(task) for task in ((master, worker) if gang.size > 1 else (master,))]
    return volcano_objects(gang, tasks, _PYTORCH_PLUGINS if gang.size > 1 else None)


def build_plain(gang: Gang) -> list[Manifest]:
    """Return the objects that run any command in any image.

    In each pod, VC_TASK_INDEX is the pod's index, and VC_WORKER_HOSTS lists all host names.
    """
    pod = replace(gang.pod, env={**command_variables(gang), **gang.pod.env})
    task = compact(
        {
            "name": "worker",
            "replicas": gang.size,
            "minAvailable": gang.minimum if gang.is_elastic else None,
            "template": volcano_pod_template(gang, pod),
        }
    )
    return volcano_objects(gang, [task], SERVICE_PLUGINS)


def build_tensorflow(gang: Gang) -> list[Manifest]:
    """Return the objects of a run with the `tensorflow` plugin, which sets TF_CONFIG.

    TF_CONFIG contains the addresses of all workers and the index of the worker in this pod.

    One process per pod uses all of the pod's GPUs. Worker 0 is the chief, which is the default of
    MultiWorkerMirroredStrategy. A single pod has no TF_CONFIG and trains with MirroredStrategy.
    """
    program = list(gang.pod.command) if gang.custom_command else ["python3", *gang.pod.command]
    pod = replace(gang.pod, command=program, env={**command_variables(gang), **gang.pod.env})
    task = {"name": "worker", "replicas": gang.size, "template": volcano_pod_template(gang, pod)}
    return volcano_objects(gang, [task], _TENSORFLOW_PLUGINS if gang.size > 1 else None)


def volcano_objects(
    gang: Gang,
    tasks: Sequence[Manifest],
    plugins: Mapping[str, list[str]] | None,
    policies: Sequence[Manifest] | None = None,
) -> list[Manifest]:
    """Return the Volcano Job for these tasks, or JobTemplates and a JobFlow.

    Runs with steps or a schedule need a JobFlow. If `gang.stop` is set, a Command follows the Job.

    A task's `dependsOn` cannot order steps: Volcano considers the dependency met when the pods are
    ready, not when they have succeeded. Besides, all pods of a gang must start together, so a task
    that waits for another one would never start.

    `policies` replace the default policies.
    """
    spec = _spec(gang, tasks, plugins)
    if policies is not None:
        spec["policies"] = [*policies]
    if not gang.steps and not gang.is_flow:
        job = _object(JOB, metadata(gang), spec)
        return [job, _termination(gang)] if gang.stop else [job]
    flow_metadata = metadata(gang)
    specs = {TRAINING_STEP: spec} | {step.name: _step_spec(gang, step) for step in gang.steps}
    labels = {step.name: dict(step.pod.labels) for step in gang.steps}
    after = {TRAINING_STEP: gang.after} | {step.name: step.after for step in gang.steps}
    templates = [
        _object(
            TEMPLATE,
            {
                **flow_metadata,
                "name": template_name(gang.name, name),
                "labels": labels.get(name, flow_metadata["labels"]),
            },
            template_spec,
        )
        for name, template_spec in specs.items()
    ]
    return [*templates, _object(FLOW, flow_metadata, flow_spec(gang.name, after))]


def _termination(gang: Gang) -> Manifest:
    """Return the Command that terminates the run. The job stays in the Terminated phase."""
    return {
        "apiVersion": COMMAND.api_version,
        "kind": COMMAND.kind,
        "metadata": metadata(gang),
        "action": "TerminateJob",
        "target": {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "name": gang.name,
            # The API requires the field, but the controller finds the job by its name.
            "uid": "",
        },
    }


def _spec(
    gang: Gang, tasks: Sequence[Manifest], plugins: Mapping[str, list[str]] | None
) -> Manifest:
    replicas = sum(task["replicas"] for task in tasks)
    return compact(
        {
            "schedulerName": "volcano",
            "queue": gang.queue,
            "minAvailable": replicas - gang.size + gang.minimum,
            # Pods above the minimum may still be queued when all running pods have succeeded. The
            # job then succeeds without the queued pods.
            "minSuccess": gang.minimum if gang.is_elastic else None,
            "maxRetry": gang.retries,
            "priorityClassName": gang.priority_class,
            "networkTopology": dict(gang.network_topology),
            "plugins": dict(plugins) if plugins else None,
            "policies": _policies(gang),
            "tasks": [{**task, "maxRetry": _TASK_RETRIES} for task in tasks],
        }
    )


def _policies(gang: Gang) -> list[Manifest]:
    # The first policy that matches applies, so the policies for exit codes come first. An elastic
    # gang keeps running when a pod is evicted, and gets a new pod when there is free capacity.
    events = ["PodFailed"] if gang.is_elastic else ["PodEvicted", "PodFailed"]
    return [
        *({"exitCode": code, "action": "TerminateJob"} for code in gang.fatal_exit_codes),
        {"events": events, "action": "RestartJob"},
    ]


def _step_spec(gang: Gang, step: Step) -> Manifest:
    retries = gang.retries if step.retries is None else step.retries
    step_gang = replace(gang, size=1, min_size=None, network_topology={}, retries=retries)
    task = {"name": "step", "replicas": 1, "template": volcano_pod_template(gang, step.pod)}
    return _spec(step_gang, [task], None)


def _object(resource: Resource, object_metadata: Manifest, spec: Manifest) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": object_metadata,
        "spec": spec,
    }
