"""Kind `notebook`: a Volcano Job with one pod that runs JupyterLab."""

from typing import Final

from kube.kinds.record import Kind
from kube.kinds.volcano import JOB

CONTAINER: Final = "notebook"

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset({"notebook", "attempt_deadline_seconds"}),
    objects="Volcano Job; with a route, also Service, NetworkPolicy and HTTPRoute",
    needs="Volcano; Gateway API for a route",
    after_fault="the notebook is suspended; after an eviction, it restarts",
    image_needs="JupyterLab",
    containers=(CONTAINER,),
    service="route",
)
