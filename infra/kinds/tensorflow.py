"""Kind `tensorflow`: a Volcano Job with the plugin `tensorflow`, which sets TF_CONFIG.

TF_CONFIG contains the addresses of all workers and the index of the worker in this pod.

One process per pod uses all of the pod's GPUs. Worker 0 is the chief, which is the default of
MultiWorkerMirroredStrategy. A single pod has no TF_CONFIG and trains with MirroredStrategy.
"""

from dataclasses import replace

from infra.kinds.gang import Gang, command_variables, volcano_pod_template
from infra.kinds.volcano import SERVICE_PLUGINS, volcano_objects
from infra.manifests import Manifest

PORT = 2222
_PLUGINS = {
    "tensorflow": ["--worker=worker", f"--port={PORT}"],
    **SERVICE_PLUGINS,
}


def build(gang: Gang) -> list[Manifest]:
    """Return the Volcano Job, or the objects that create it (see `volcano_objects`)."""
    command = list(gang.pod.command) if gang.custom_command else ["python3", *gang.pod.command]
    pod = replace(gang.pod, command=command, env={**command_variables(gang), **gang.pod.env})
    task = {"name": "worker", "replicas": gang.size, "template": volcano_pod_template(gang, pod)}
    return volcano_objects(gang, [task], _PLUGINS if gang.size > 1 else None)
