"""Kind `plain`: a Volcano Job for any command in any image."""

from typing import Final

from kube.kinds.record import Kind
from kube.kinds.volcano import JOB

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "min_nodes",
            "attempt_deadline_seconds",
            "success: all",
            "fatal_exit_codes",
            "state: stopped",
            "steps",
            "schedule",
        }
    ),
    objects="Volcano Job",
    needs="Volcano",
)
