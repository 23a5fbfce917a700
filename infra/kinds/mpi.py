"""The `mpi` kind: a Volcano Job with the `mpi` and `ssh` plugins.

Open MPI starts one process per GPU. The launcher has no GPU. It connects to the workers' sshd,
which does not run as root and therefore needs an unprivileged port. The `ssh` plugin generates the
keys, which never leave the cluster.
"""

import shlex
from dataclasses import replace
from typing import Final

from infra.kinds.gang import Gang, command_variables, volcano_pod_template
from infra.kinds.volcano import COMPLETE_JOB_POLICIES, SERVICE_PLUGINS, volcano_objects
from infra.manifests import Manifest
from infra.pods import NODE_NAME, rdma_variables
from kube.kinds import SSH_PORT
from kube.kinds.record import RENDEZVOUS_PORT
from kube.names import SSH_PATH

_PLUGINS = {
    "mpi": ["--master=launcher", "--worker=worker", f"--port={SSH_PORT}"],
    "ssh": [f"--ssh-key-file-path={SSH_PATH}"],
    **SERVICE_PLUGINS,
}

_SSH_OPTIONS: Final = (
    f"-p {SSH_PORT} -i {SSH_PATH}/id_rsa -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
)

_WORKER_SCRIPT: Final = (
    'ssh-keygen -q -t ed25519 -N "" -f /tmp/host_key && '
    f"exec /usr/sbin/sshd -D -e -p {SSH_PORT} -h /tmp/host_key -o PidFile=none "
    f"-o AuthorizedKeysFile={SSH_PATH}/authorized_keys -o StrictModes=no -o UsePAM=no"
)
"""Worker script. sshd must be started with its absolute path and needs a host key."""

_LAUNCHER_SCRIPT: Final = (
    "for host in $(echo $MPI_HOST | tr , ' '); do "
    f"until ssh {_SSH_OPTIONS} $host true; do sleep 1; done; done; "
    "export MASTER_ADDR=${MPI_HOST%%,*}; "
    'exec mpirun --host "$(echo $MPI_HOST | sed s/,/:$SLOTS,/g):$SLOTS" '
)
"""Launcher script. It waits for the workers in MPI_HOST, which the `mpi` plugin sets."""

_VARIABLES_SCRIPT: Final = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
    "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE "
    'GROUP_RANK=$(($OMPI_COMM_WORLD_RANK/$SLOTS)); exec "$@"'
)
"""Script that sets torchrun's variables from the corresponding Open MPI variables."""


def build(gang: Gang) -> list[Manifest]:
    """Return the Volcano Job, or the objects that create it (see `volcano_objects`).

    The job succeeds as soon as the launcher does, because the workers' sshd never exits.
    """
    launcher = gang.launcher or gang.pod
    env = {
        **command_variables(gang),
        "SLOTS": str(gang.processes),
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # The launcher has no RDMA device, but passes these variables on to the processes.
        **rdma_variables(gang.pod.rdma),
        **gang.pod.env,
    }
    launcher_pod = replace(
        launcher, command=_launcher_command(gang, env), env={**_MPI_SETTINGS, **env}
    )
    worker_script = "".join(
        [_WORKER_SCRIPT, *(f" -o SetEnv={name}=${name}" for name in env.keys() & NODE_NAME)]
    )
    worker_pod = replace(gang.pod, command=["sh", "-c", worker_script], env=env)
    tasks = [
        {
            "name": "launcher",
            "replicas": 1,
            "policies": COMPLETE_JOB_POLICIES,
            "template": volcano_pod_template(gang, launcher_pod),
        },
        {
            "name": "worker",
            "replicas": gang.size,
            "template": volcano_pod_template(gang, worker_pod),
        },
    ]
    return volcano_objects(gang, tasks, _PLUGINS)


_MPI_SETTINGS: Final = {
    # Open MPI 4 and 5 read variables with different names.
    "OMPI_MCA_plm_rsh_args": _SSH_OPTIONS,
    "PRTE_MCA_plm_ssh_args": _SSH_OPTIONS,
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
}


def _launcher_command(gang: Gang, env: dict[str, object]) -> list[str]:
    # An SSH session has none of the container's environment variables, so the launcher sends its
    # own variables, except NODE_NAME, which differs between pods.
    exported = ["PATH", "HOME", "PYTHONUNBUFFERED", "MASTER_ADDR", *env]
    flags = [f"-np {gang.size * gang.processes}", "--bind-to none"]
    flags += [f"-x {name}" for name in dict.fromkeys(exported) if name not in NODE_NAME]
    script = f'{_LAUNCHER_SCRIPT}{" ".join(flags)} sh -c {shlex.quote(_VARIABLES_SCRIPT)} sh "$@"'
    return ["sh", "-c", script, "sh", *_training_command(gang)]


def _training_command(gang: Gang) -> list[str]:
    return list(gang.pod.command) if gang.custom_command else ["python3", *gang.pod.command]
