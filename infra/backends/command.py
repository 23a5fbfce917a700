"""The command of a gang's pods, and the variables that a command of one's own can use."""

from infra.backends.gang import RENDEZVOUS_PORT, Gang


def command(gang: Gang) -> list[str]:
    """The container's command; Kubernetes replaces $(NAME) by the variable of that name.

    Several nodes find each other by RANK, MASTER_ADDR and MASTER_PORT, which the job kind
    provides; a single one needs no address.
    """
    if gang.own_command:
        return list(gang.pod.command)
    return [
        "python3",
        "-m",
        "training.launch",
        f"--nnodes={node_range(gang)}",
        f"--nproc-per-node={gang.processes}",
        *_rendezvous(gang),
        *gang.pod.command,
    ]


def command_variables(gang: Gang) -> dict[str, str]:
    """What a command needs beyond the rendezvous.

    One of one's own is told NNODES and NPROC_PER_NODE in the form that torchrun takes: of an
    elastic gang NNODES is `2:4`.
    """
    variables = {}
    if gang.is_elastic:
        # torchrun's processes would meet in the store of the rendezvous itself, and after a node
        # has gone find there the addresses of those before them, until the restarts are used up.
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if gang.own_command:
        variables |= {"NNODES": node_range(gang), "NPROC_PER_NODE": str(gang.processes)}
    return variables


def node_range(gang: Gang) -> str:
    """The number of nodes as torchrun takes it: `4`, or `2:4` for an elastic gang."""
    return f"{gang.fewest}:{gang.nodes}" if gang.is_elastic else str(gang.nodes)


def _rendezvous(gang: Gang) -> list[str]:
    if gang.nodes == 1:
        return ["--standalone"]
    if gang.is_elastic:
        # Ranks are given anew whenever a node comes or goes.
        return [
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)",
            f"--rdzv-id={gang.name}",
            f"--max-restarts={gang.retries}",
        ]
    return [
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
    ]


def rank_variables(master: str, index_annotation: str) -> dict[str, object]:
    """Rank and rendezvous of Indexed Jobs, whose pods carry their index as an annotation."""
    path = f"metadata.annotations['{index_annotation}']"
    return {
        "RANK": {"valueFrom": {"fieldRef": {"fieldPath": path}}},
        "MASTER_ADDR": master,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
