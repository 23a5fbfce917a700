"""A gang as a Volcano Job: Volcano places all pods or none, and restarts them together."""

from dataclasses import replace

from infra.backends.command import command, command_variables
from infra.backends.gang import RENDEZVOUS_PORT, Gang
from infra.backends.volcano import COMPLETES_THE_JOB, SERVICE_PLUGINS, placed
from infra.backends.volcano import build as volcano
from infra.manifests import Manifest, compact

_PLUGINS = {
    "pytorch": ["--master=master", "--worker=worker", f"--port={RENDEZVOUS_PORT}"],
    **SERVICE_PLUGINS,
}


def build(gang: Gang) -> list[Manifest]:
    """The Volcano Job: a master with rank 0 and workers, alike but for their number."""
    pod = replace(gang.pod, command=command(gang), env={**command_variables(gang), **gang.pod.env})
    template = placed(gang, pod)
    master = {
        "name": "master",
        "replicas": 1,
        # Rank 0 is where the others meet, so an elastic gang never goes on without it.
        "minAvailable": 1 if gang.is_elastic else None,
        "policies": COMPLETES_THE_JOB if gang.success == "first" else None,
        "template": template,
    }
    worker = {
        "name": "worker",
        "replicas": gang.nodes - 1,
        "minAvailable": gang.fewest - 1 if gang.is_elastic else None,
        "template": template,
    }
    tasks = [compact(task) for task in ((master, worker) if gang.nodes > 1 else (master,))]
    return volcano(gang, tasks, _PLUGINS if gang.nodes > 1 else None)
