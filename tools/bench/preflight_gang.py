"""Worker process that tools.bench.preflight starts. Arguments: RANK SIZE ADDRESS RUN_DIR.

For each port read from standard input, the process joins a new gang. Rank 0 writes the preflight
events. Each process then writes a JSON line with the slow nodes that the preflight reported, and
the seconds since it read the port.
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
    """Join gangs until standard input ends."""
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
