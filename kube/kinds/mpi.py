"""Kind `mpi`: a Volcano Job with the plugins `mpi` and `ssh`."""

from typing import Final

from kube.kinds.record import RENDEZVOUS_PORT, Kind
from kube.kinds.volcano import JOB

SSH_PORT: Final = 2222

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "hyperparameters",
            "attempt_deadline_seconds",
            "success: first",
            "fatal_exit_codes",
            "state: stopped",
            "steps",
            "schedule",
            "launcher",
        }
    ),
    objects="Volcano Job with plugins `mpi` and `ssh`: a launcher and the workers",
    needs="Volcano",
    image_needs="Open MPI and OpenSSH",
    pod_suffix="-launcher-0",
    ports=frozenset({RENDEZVOUS_PORT, SSH_PORT}),
)
