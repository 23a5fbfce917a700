"""Neural network that all servers run, so that only the servers differ."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from tools.bench.inference.workloads import Array, Compute, Workload
from workload.models import build

OUTPUTS = 10


def compute_of(workload: Workload, directory: Path) -> Compute:
    """Return the exported network as a function, in eager PyTorch on one thread."""
    torch.set_num_threads(1)
    if not workload.computes:
        return lambda batch: batch
    network = build(workload.name, workload.options, OUTPUTS, workload.shape)
    network.load_state_dict(load_file(directory / "model.safetensors"))
    network.eval()

    def compute(batch: Array) -> Array:
        with torch.inference_mode():
            probabilities: Array = network(torch.from_numpy(batch)).softmax(1).numpy()
        return probabilities

    return compute
