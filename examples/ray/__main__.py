"""Command of a RayJob: `python -m examples.ray`, with the flags of `python -m training`.

Ray places one actor on each GPU of the cluster, and each actor runs a training process.
The command exits with the highest exit code of all processes. If a process or its pod is lost, the
other processes also fail, and the RayJob restarts from the latest checkpoint.
"""

import os
import socket
import subprocess
import sys
from typing import Any

import ray


class Trainer:
    """An actor that runs one process of the training program."""

    def free_address(self) -> tuple[str, int]:
        """Return the address of this pod, and a free port."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def train(self, rank: int, size: int, master: tuple[str, int], arguments: list[str]) -> int:
        """Run the training process until it exits, and return its exit code."""
        # An actor sees only its own GPU, so each process is configured as the only one on its node.
        world = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        address = {"MASTER_ADDR": master[0], "MASTER_PORT": master[1]}
        # Ray copies the output of actors and their processes to the log of the command.
        variables = {name: str(value) for name, value in {**world, **address}.items()}
        return subprocess.run(
            [sys.executable, "-m", "training", *arguments], env=os.environ | variables
        ).returncode


def main() -> int:
    """Train on all GPUs of the Ray cluster and return the exit code."""
    ray.init()
    size = int(ray.cluster_resources().get("GPU", 0))
    actor: Any = ray.remote(num_cpus=0, num_gpus=1)(Trainer)
    trainers = [actor.remote() for _ in range(size)]
    master = ray.get(trainers[0].free_address.remote())
    results = [
        trainer.train.remote(rank, size, master, sys.argv[1:])
        for rank, trainer in enumerate(trainers)
    ]
    codes: list[int] = ray.get(results)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
