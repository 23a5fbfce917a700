"""A gang as a Volcano Job with the plugin tensorflow: TF_CONFIG tells each worker of all others.

One process in each pod uses all GPUs of the pod; worker 0 is the chief, as
MultiWorkerMirroredStrategy has it where no other is named. A single pod gets no TF_CONFIG and
trains with MirroredStrategy.
"""

from dataclasses import replace

from infra.backends.command import command_variables
from infra.backends.gang import Gang
from infra.backends.volcano import SERVICE_PLUGINS, placed
from infra.backends.volcano import build as volcano
from infra.manifests import Manifest

PORT = 2222
_PLUGINS = {
    "tensorflow": ["--worker=worker", f"--port={PORT}"],
    **SERVICE_PLUGINS,
}


def build(gang: Gang) -> list[Manifest]:
    """The Volcano Job."""
    command = list(gang.pod.command) if gang.own_command else ["python3", *gang.pod.command]
    pod = replace(gang.pod, command=command, env={**command_variables(gang), **gang.pod.env})
    task = {"name": "worker", "replicas": gang.nodes, "template": placed(gang, pod)}
    return volcano(gang, [task], _PLUGINS if gang.nodes > 1 else None)
