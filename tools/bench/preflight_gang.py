"""Worker process that tools.bench.preflight starts. Arguments: RANK SIZE ADDRESS RUN_DIR.

It starts a gang for each port that it reads from standard input. For each start, it writes the
preflight events, and then a JSON line with the seconds since the port was read and the slow nodes
that the preflight reported.
"""

import json
import sys
import time

import torch

from training.config import TrainingConfig
from training.gang.distributed import joined
from training.gang.measurements import SlowNodeError, check_gang
from training.gang.world import World


def main() -> None:
    """Start gangs until standard input ends."""
    rank, size, address, run_dir = sys.argv[1:]
    torch.set_num_threads(1)
    device = torch.device("cpu")
    config = TrainingConfig.model_validate(
        {"preflight": "strict", "device": "cpu", "run_dir": run_dir}
    )
    for line in sys.stdin:
        began, found = time.monotonic(), ""
        world = World(int(rank), int(size), 0, f"{address}:{line.strip()}")
        with joined(world, device, 60):
            try:
                check_gang(config, world, device, lambda: None)
            except SlowNodeError as error:
                found = str(error)
            seconds = time.monotonic() - began
        sys.stdout.write(json.dumps({"seconds": seconds, "found": found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
