"""Neural network that all servers run, so that only the servers differ."""

from pathlib import Path, PurePosixPath

import torch
from torch import nn

from inference.allocator import keep_freed_memory
from inference.config import InferenceConfig
from inference.engine.backends import Choice, load_backend
from tools.bench.inference.workloads import Array, Compute, Workload
from workload.export import load_network
from workload.manifest import read_manifest


def compute_of(workload: Workload, directory: Path) -> Compute:
    """Return the exported network as a function that computes a batch on one thread.

    Unless the workload is plain, apply the optimizations of our server: folded batch norms, the
    faster memory layout, and an allocator that keeps freed memory.
    """
    torch.set_num_threads(1)
    if not workload.is_network:
        return lambda batch: batch
    manifest = read_manifest(directory)
    if workload.plain:
        network: nn.Module = load_network(directory, manifest)
    else:
        keep_freed_memory()
        device = torch.device("cpu")
        config = InferenceConfig(model_name="model", model_path=PurePosixPath(directory))
        network = load_backend(Choice(config, manifest, device, directory))

    def compute(batch: Array) -> Array:
        with torch.inference_mode():
            probabilities: Array = network(torch.from_numpy(batch)).softmax(1).numpy()
        return probabilities

    return compute
