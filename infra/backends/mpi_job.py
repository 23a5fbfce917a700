"""A gang as a Volcano Job with the plugins mpi and ssh: Open MPI starts one process for each GPU.

The launcher has no GPU. It reaches the workers by sshd, which runs as the pods' own user and so at
a port above 1024; the plugin ssh makes the keys, which never leave the cluster.
"""

import shlex
from dataclasses import replace
from typing import Final

from infra.backends.command import command_variables
from infra.backends.gang import RENDEZVOUS_PORT, Gang
from infra.backends.volcano import COMPLETES_THE_JOB, SERVICE_PLUGINS, placed
from infra.backends.volcano import build as volcano
from infra.manifests import Manifest
from infra.pods import rdma_variables
from kube.names import SSH_PATH

SSH_PORT: Final = 2222

_PLUGINS = {
    "mpi": ["--master=launcher", "--worker=worker", f"--port={SSH_PORT}"],
    "ssh": [f"--ssh-key-file-path={SSH_PATH}"],
    **SERVICE_PLUGINS,
}

_SSH_OPTIONS: Final = (
    f"-p {SSH_PORT} -i {SSH_PATH}/id_rsa -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
)

_SERVE: Final = (
    'ssh-keygen -q -t ed25519 -N "" -f /tmp/host_key && '
    f"exec /usr/sbin/sshd -D -e -p {SSH_PORT} -h /tmp/host_key -o PidFile=none "
    f"-o AuthorizedKeysFile={SSH_PATH}/authorized_keys -o StrictModes=no -o UsePAM=no"
)
"""A worker: sshd wants an absolute path, and a host key that nobody else has."""

_LAUNCH: Final = (
    "for host in $(echo $MPI_HOST | tr , ' '); do "
    f"until ssh {_SSH_OPTIONS} $host true; do sleep 1; done; done; "
    "export MASTER_ADDR=${MPI_HOST%%,*}; "
    'exec mpirun --host "$(echo $MPI_HOST | sed s/,/:$SLOTS,/g):$SLOTS" '
)
"""The launcher: MPI_HOST comes from the plugin, and workers begin later than it does."""

_RANK: Final = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
    "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE "
    'GROUP_RANK=$(($OMPI_COMM_WORLD_RANK/$SLOTS)); exec "$@"'
)
"""Open MPI's names of the ranks as torchrun would have set them."""


def build(gang: Gang) -> list[Manifest]:
    """The Volcano Job. It has succeeded when the launcher has; the workers' sshd never ends."""
    launcher = gang.leader or gang.pod
    env = {
        **command_variables(gang),
        "SLOTS": str(gang.processes),
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # The launcher has no such device, but it is the one that tells the processes of it.
        **rdma_variables(gang.pod.rdma),
        **gang.pod.env,
    }
    launching = replace(launcher, command=_launch(gang, env), env={**_MPI_SETTINGS, **env})
    serving = replace(gang.pod, command=["sh", "-c", _SERVE], env=env)
    tasks = [
        {
            "name": "launcher",
            "replicas": 1,
            "policies": COMPLETES_THE_JOB,
            "template": placed(gang, launching),
        },
        {"name": "worker", "replicas": gang.nodes, "template": placed(gang, serving)},
    ]
    return volcano(gang, tasks, _PLUGINS)


_MPI_SETTINGS: Final = {
    # Open MPI 4 and 5 have different names for the same.
    "OMPI_MCA_plm_rsh_args": _SSH_OPTIONS,
    "PRTE_MCA_plm_ssh_args": _SSH_OPTIONS,
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
}


def _launch(gang: Gang, env: dict[str, object]) -> list[str]:
    # A session of sshd has none of its container's variables, so the launcher sends its own.
    sent = ["PATH", "HOME", "PYTHONUNBUFFERED", "MASTER_ADDR", *env]
    flags = [f"-np {gang.nodes * gang.processes}", "--bind-to none"]
    flags += [f"-x {name}" for name in dict.fromkeys(sent)]
    script = f'{_LAUNCH}{" ".join(flags)} sh -c {shlex.quote(_RANK)} sh "$@"'
    return ["sh", "-c", script, "sh", *_program(gang)]


def _program(gang: Gang) -> list[str]:
    return list(gang.pod.command) if gang.own_command else ["python3", *gang.pod.command]
