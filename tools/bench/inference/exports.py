"""`python -m tools.bench.inference.exports MODEL DIRECTORY`: write an export for the benchmark."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tools.bench.inference.workloads import WORKLOADS, Workload
from training.config import TrainingConfig
from training.data import Images, load
from training.export import write_export
from training.export.artifacts import write_weights
from workload.files import sha256_of
from workload.manifest import WEIGHTS_FILE, Manifest, Weights, write_manifest
from workload.models import build


def export(workload: Workload, directory: Path) -> None:
    """Export seeded random weights, and a statically quantized int8 version of them.

    Inference is equally fast with trained and untrained weights. The normalization layers use the
    statistics of the requests, and the last layer is scaled, so that the outputs for different
    requests differ and are not saturated.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not workload.is_network:
        _export_noop(workload, directory)
        return
    config = TrainingConfig.model_validate(
        {
            "model": workload.model,
            "model_options": workload.options,
            "dataset": "digits",
            "run_dir": str(directory.parent),
            "device": "cpu",
            "quantize": "static",
        }
    )
    data = load("digits", directory, workload.shape, 0)
    torch.manual_seed(0)
    network = build(workload.model, config.model_options, data.outputs, data.shape)
    samples = workload.samples()
    inputs = torch.from_numpy(samples)
    with torch.no_grad():
        for _ in range(20):
            network.train()(inputs)
        last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
        last.weight /= network.eval()(inputs).std(0).mean()
    # Quantization is calibrated on the requests.
    pixels = (255 * samples).astype(np.uint8)
    requests = Images(pixels, np.zeros(len(pixels), np.int64), divisor=255)
    data = replace(data, train=requests, held_out=requests)
    write_export(directory, network.eval(), config, data, {})


def _export_noop(workload: Workload, directory: Path) -> None:
    path = directory / WEIGHTS_FILE
    write_weights(path, nn.Linear(1, 1))
    manifest = Manifest(
        model="none:none",
        input_shape=workload.shape,
        outputs=workload.shape[0],
        metrics={},
        weights=Weights(size=path.stat().st_size, sha256=sha256_of(path)),
        torch_version=str(torch.__version__),
    )
    write_manifest(directory, manifest)


if __name__ == "__main__":
    export(WORKLOADS[sys.argv[1]], Path(sys.argv[2]))
