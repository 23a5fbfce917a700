"""Kind `plain`: a Volcano Job for any command in any image."""

from dataclasses import replace

from infra.kinds.gang import Gang, command_variables, volcano_pod_template
from infra.kinds.volcano import SERVICE_PLUGINS, volcano_objects
from infra.manifests import Manifest, compact


def build(gang: Gang) -> list[Manifest]:
    """Return the Volcano Job, or the objects that create it (see `volcano_objects`).

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
