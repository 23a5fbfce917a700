"""A gang as a TrainJob of Kubeflow Trainer (v2), with a TrainingRuntime of its own.

The runtime describes everything and the TrainJob only names it: overrides in a TrainJob have
changed their form between releases, and what a policy judges should stand in one place.
"""

from dataclasses import replace

from infra.backends.command import command, command_variables, rank_variables
from infra.backends.gang import Gang, group_annotations, metadata, pod_group
from infra.backends.indexed_job import failure_policy
from infra.manifests import Manifest, compact
from infra.pods import Pod, pod_template
from kube.names import INDEX_ANNOTATION, QUEUE_LABEL

_API = "trainer.kubeflow.org/v1alpha1"
_NODE = "node"
"""Name that Trainer expects of the job whose pods train, and of their container."""


def build(gang: Gang) -> list[Manifest]:
    """PodGroup, TrainingRuntime and TrainJob; one JobSet comes out of them."""
    described = metadata(gang)
    labels = {**described["labels"], QUEUE_LABEL: gang.queue}
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": {**described, "labels": labels},
        "spec": {
            "mlPolicy": {"numNodes": gang.nodes},
            "template": {"spec": _job_set(gang)},
        },
    }
    job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": {**described, "labels": labels},
        "spec": compact(
            {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org",
                    "kind": "TrainingRuntime",
                    "name": gang.name,
                },
                "suspend": gang.suspend or None,
            }
        ),
    }
    return [pod_group(gang), runtime, job]


def _job_set(gang: Gang) -> Manifest:
    """One Indexed Job; when it fails all of it starts again, unless an exit code forbids that."""
    job = {
        "completionMode": "Indexed",
        "completions": gang.nodes,
        "parallelism": gang.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": failure_policy(gang, _NODE),
        "template": pod_template(_pod(gang)),
    }
    return {
        "failurePolicy": compact(
            {
                "maxRestarts": gang.retries,
                "rules": [
                    {
                        "name": "fatalExitCode",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            }
        ),
        "replicatedJobs": [
            {
                "name": _NODE,
                "replicas": 1,
                "template": {
                    "metadata": {
                        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                    },
                    "spec": job,
                },
            }
        ],
    }


def _pod(gang: Gang) -> Pod:
    # JobSet names pods <job set>-<job>-<replica>-<index>, and its Service like itself.
    master = f"{gang.name}-{_NODE}-0-0.{gang.name}"
    rendezvous = rank_variables(master, INDEX_ANNOTATION) if gang.nodes > 1 else {}
    return replace(
        gang.pod,
        container=_NODE,
        command=command(gang),
        env={**rendezvous, **command_variables(gang), **gang.pod.env},
        annotations={**gang.pod.annotations, **group_annotations(gang)},
        scheduler="volcano",
        restart_policy="Never",
        priority_class=gang.priority_class,
    )
