"""Kind `ray`: a RayJob of KubeRay."""

from typing import Final

from kube.kinds.record import Kind, Resource, State

JOB: Final = Resource(
    group="ray.io",
    version="v1",
    kind="RayJob",
    plural="rayjobs",
    title="RayJob",
    phase=("jobDeploymentStatus",),
    states={
        "Complete": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
        "Retrying": State.RESTARTING,
    },
)

WORKER: Final = "ray-worker"
HEAD: Final = "ray-head"
"""Names of the containers in worker pods and in the head pod."""

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset({"deadline_seconds", "state: suspended", "launcher"}),
    objects="RayJob `ray.io/v1`, PodGroup, NetworkPolicy",
    # Earlier releases have no retries.
    needs="Volcano, KubeRay 1.2 or later",
    after_fault="the whole Ray cluster is re-created",
    image_needs="Ray",
    operator="kuberay",
    # KubeRay rejects longer names because it derives pod names from them.
    max_run_name=47,
    containers=(WORKER, HEAD),
    service="none",
)
