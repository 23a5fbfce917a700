"""A gang of any command in any image, as a Volcano Job that knows nothing of the program."""

from dataclasses import replace

from infra.backends.command import command_variables
from infra.backends.gang import Gang
from infra.backends.volcano import SERVICE_PLUGINS, placed
from infra.backends.volcano import build as volcano
from infra.manifests import Manifest, compact


def build(gang: Gang) -> list[Manifest]:
    """The Volcano Job. Each pod knows its index (VC_TASK_INDEX) and all hosts (VC_WORKER_HOSTS)."""
    pod = replace(gang.pod, env={**command_variables(gang), **gang.pod.env})
    task = compact(
        {
            "name": "worker",
            "replicas": gang.nodes,
            "minAvailable": gang.fewest if gang.is_elastic else None,
            "template": placed(gang, pod),
        }
    )
    return volcano(gang, [task], SERVICE_PLUGINS)
