"""Training and serving on one GPU: `make bench-gpu`.

First, the code paths for GPUs are checked: training with each precision and kind of parallelism,
compared with the CPU; interruption and resumption; GPU failures; the model server's backends and
precisions. Then the benchmark measures tokens per second, MFU and memory of a large language model,
images per second, the training pause for a checkpoint compared with dcp.async_save, the server's
requests per second, and the effect of each optimization that the server applies to a neural
network. The benchmark continues after a failed check, and writes .bench/gpu.json. Communication
between GPUs is not measured.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tools.bench.gpu import serving
from tools.bench.gpu.paths import TEXT, Runs, outcome_of, run_checks, run_comparisons
from tools.bench.outcome import Goal, conclude, print_line, ratios, spread
from tools.bench.training_gang import LARGE_BATCH, LARGE_OPTIONS
from workload.progress import Step

LARGE: Final[dict[str, Any]] = TEXT | {
    "model_options": LARGE_OPTIONS, "batch_size": LARGE_BATCH, "train_steps": 30, "log_every": 5,
    "evaluate_samples": 16, "keep_checkpoints": 1, "keep_best": False,
}  # fmt: skip
PHOTOS: Final[dict[str, Any]] = {
    "model": "resnet50", "dataset": "synthetic", "train_steps": 60, "batch_size": 128,
    "log_every": 5, "evaluate_samples": 128,
}  # fmt: skip
MEASURED: Final[dict[str, dict[str, Any]]] = {
    "language model, fp32 with TF32": LARGE | {"precision": "fp32"},
    "language model": LARGE,
    "language model, FSDP2": LARGE | {"parallel": "fsdp"},
    "language model, recomputed": LARGE | {"activation_checkpointing": True},
    "language model, compiled": LARGE | {"compile": True},
    "ResNet-50": PHOTOS,
    "ResNet-50, 8 loader workers": PHOTOS | {"loader_workers": 8},
}
"""Runs whose throughput is measured. The language model has 302 million parameters, and ResNet-50
processes images of 224 x 224 pixels."""
WARM_UP: Final = 4
"""Number of initial progress lines to skip: they cover compilation, allocation and evaluation."""

SMALL: Final = "simple-cnn"
SERVED: Final[dict[str, dict[str, Any]]] = {
    SMALL: {"dataset": "digits", "epochs": 2},
    "resnet50": {"dataset": "synthetic", "train_steps": 2},
}
"""Models that are trained briefly and then served. Only resnet50's request rates are measured."""
EAGER: Final = (("eager", "fp32"), ("eager", "bf16"), ("eager", "fp16"))
COMPILED: Final = (("compile", "fp32"), ("compile", "bf16"), ("aotinductor", "fp32"))
"""Compiled backends. They are not tested with resnet50, because compiling it takes minutes."""
RATE_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "bf16, 2 workers": {"precision": "bf16", "workers": 2},
}
"""Settings of the servers whose request rates are measured."""
PARTS: Final = ("paths", "training", "serving")


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="part to run; may be repeated; default: all parts",
    )
    parser.add_argument("--turns", type=int, default=5, help="rounds per comparison; default: 5")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch found no GPU; run this benchmark on a host with a GPU")
    # Handle SIGTERM like Ctrl-C, so that partial results are still written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parts, samples = options.part or PARTS, dict[str, Any](gpu=gpu())
    try:
        measure(parts, options.turns, samples)
    except KeyboardInterrupt:
        print_line("interrupted")
    conclude("gpu", samples, goals(samples))


def measure(parts: Sequence[str], turns: int, samples: dict[str, Any]) -> None:
    """Measure the parts, and add each result to `samples` as soon as it is available."""
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name))
        if "paths" in parts:
            paths = samples["paths"] = {}
            for part in (run_comparisons, run_checks):
                for path, result in part(runs):
                    paths[path] = print_result(path, result)
        if "serving" in parts:
            for model in SERVED:
                serve(runs, model, samples.setdefault("serving", {}).setdefault(model, {}))
        if "training" in parts:
            training = samples["training"] = {}
            for run in MEASURED:
                training[run] = throughput(runs, run)
            samples["throughput"] = gang("throughput", runs, turns)
            samples["pause"] = gang("pause", runs, max(2, turns // 2))


def gpu() -> dict[str, Any]:
    """Return the GPU's properties and the software versions."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "name": torch.cuda.get_device_name(),
        "memoryGiB": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)),
    }


def print_result(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Print a result and return it."""
    shown = {key: value for key, value in result.items() if key != "passed"}
    print_line(f"{'ok    ' if result['passed'] else 'FAILED'} {name}: {json.dumps(shown)[:600]}")
    return result


def throughput(runs: Runs, name: str) -> dict[str, Any]:
    """Return the rates of a run, computed from its progress lines."""
    attempt = runs.run(f"measured {name}", MEASURED[name])
    steps = [event for event in attempt.events if isinstance(event, Step)][WARM_UP:]
    if attempt.code or not steps:
        result: dict[str, Any] = {"passed": False, "reason": attempt.text[-2000:]}
    else:
        result = {"passed": True}
        for field in ("samples_per_second", "tokens_per_second", "mfu"):
            values = [value for step in steps if (value := getattr(step, field)) is not None]
            result |= {field: spread(values)} if values else {}
        result["memoryGiB"] = round((steps[-1].memory_bytes or 0) / 2**30, 2)
    return print_result(name, result)


def gang(measurement: str, runs: Runs, turns: int) -> dict[str, Any]:
    """Run a measurement from tools.bench.training_gang on the GPU."""
    directory = runs.directory / measurement
    directory.mkdir()
    command = [sys.executable, "-m", "tools.bench.training_gang", measurement, str(directory)]
    program = subprocess.run(
        [*command, f"--turns={turns}", "--device=cuda"],
        env=os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if program.returncode:
        result: dict[str, Any] = {"passed": False, "reason": program.stderr[-2000:]}
    else:
        result = {"passed": True, **json.loads((directory / "samples.json").read_text())}
    return print_result(measurement, result)


def serve(runs: Runs, model: str, results: dict[str, Any]) -> None:
    """Train a model briefly, serve it, and add each result to `results`."""
    export, directory = runs.run_dir(f"served {model}") / "export", runs.directory / f"logs {model}"
    directory.mkdir()
    attempt = runs.run(f"served {model}", SERVED[model] | {"model": model})
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        f"{backend} {precision}": partial(
            serving.check_outputs, export, directory, backend, precision
        )
        for backend, precision in EAGER + COMPILED
        if model == SMALL or backend == "eager"
    }
    checks["CUDA error"] = partial(serving.check_recovery, export, directory)
    if model != SMALL:
        checks["network"] = partial(serving.measure_optimizations, export, directory)
        for name, settings in RATE_SETTINGS.items():
            checks[f"requests, {name}"] = partial(
                serving.measure_rates, export, directory, **settings
            )
    if attempt.code:
        results["export"] = {"passed": False, "reason": attempt.text[-2000:]}
        return
    for name, check in checks.items():
        results[name] = print_result(f"{model}: {name}", outcome_of(check))


def goals(samples: dict[str, Any]) -> list[Goal]:
    """Return the goals of the measured parts."""
    results = [*samples.get("paths", {}).values(), *samples.get("training", {}).values()]
    results += [each for model in samples.get("serving", {}).values() for each in model.values()]
    rates, pauses = samples.get("throughput", {}), samples.get("pause", {})
    results += [each for each in (rates, pauses) if each]
    found = [Goal("failures", sum(not each["passed"] for each in results), 0, at_most=True)]
    if rates.get("passed"):
        hand = spread(ratios(rates["ours"], rates["by hand"]))["median"]
        found.append(Goal("throughput relative to a hand-written loop", hand, 0.98))
    if pauses.get("passed"):
        ours = spread(ratios(pauses["ours pause"], pauses["dcp.async_save pause"]))["median"]
        found.append(Goal("pause relative to dcp.async_save", ours, 0.5, at_most=True))
    return found


if __name__ == "__main__":
    main()
