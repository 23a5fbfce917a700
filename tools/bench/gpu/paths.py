"""Training runs that check the code paths for GPUs."""

import gzip
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from devcluster.paths import CHECKOUT
from tools.bench.outcome import print_line
from tools.bench.training_gang import LARGE_OPTIONS
from training.config import TrainingConfig
from workload import exit_codes
from workload.progress import AnyEvent, Epoch, Failed, Finished, Started, Step, parse

MAX_CONCURRENT: Final = 5
"""Maximum number of concurrent runs on each device, the GPU and the CPU."""

THREADS: Final = max(1, (os.cpu_count() or 1) // MAX_CONCURRENT // 2)
"""Number of threads per run. With more threads than cores, PyTorch is many times slower."""

TOLERANCE: Final = 0.05
"""Maximum difference from the fp32 loss on the CPU, divided by max(1, loss)."""

IMAGES: Final[dict[str, Any]] = {"model": "simple-cnn", "dataset": "digits", "epochs": 3}
TEXT: Final[dict[str, Any]] = {
    "model": "gpt", "dataset": "text", "train_steps": 40, "batch_size": 16, "log_every": 10,
}  # fmt: skip

COMPARED: Final[dict[str, dict[str, Any]]] = {
    "fp32 with TF32": IMAGES | {"precision": "fp32"},
    "bf16": IMAGES,
    "fp16, clipping": IMAGES | {"precision": "fp16", "clip_norm": 1},
    "bf16 gradients": IMAGES | {"gradient_compression": "bf16"},
    "fp16 gradients": IMAGES | {"gradient_compression": "fp16"},
    "FSDP2": IMAGES | {"parallel": "fsdp"},
    "FSDP2 in fp32": IMAGES | {"parallel": "fsdp", "precision": "fp32"},
    "accumulation, averaged weights": IMAGES | {"accumulate": 2, "ema_decay": 0.9},
    "loader workers, TensorBoard": IMAGES | {"loader_workers": 2, "tensorboard": True},
    "evaluation within epochs": IMAGES | {"evaluate_steps": 5, "checkpoint_steps": 5},
    "preflight": IMAGES | {"preflight": "report"},
    "quantized and pruned export": IMAGES | {"quantize": "static", "prune": 0.1},
    "residual network": IMAGES | {"model": "resnet18", "model_options": {"image_size": 32}},
    "language model": TEXT,
    "language model, FSDP2": TEXT | {"parallel": "fsdp"},
    "activation checkpointing": TEXT | {"activation_checkpointing": True},
    "compiled": TEXT | {"compile": True},
    "compiled, FSDP2": TEXT | {"compile": True, "parallel": "fsdp"},
    "compiled, recomputed": TEXT | {"compile": True, "activation_checkpointing": True},
}
"""Settings of runs whose losses are compared with those of runs on the CPU."""

CPU_SETTINGS: Final = {
    "precision": "fp32", "gradient_compression": "none", "parallel": "ddp", "compile": False,
    "loader_workers": 0,
}  # fmt: skip
"""Settings of each CPU run that differ from those of the GPU run."""


class CheckError(Exception):
    """Error for a failed check. The message contains the unexpected result."""


def require(condition: bool, found: object) -> None:
    """Raise CheckError with `found` as the message if the condition is false."""
    if not condition:
        raise CheckError(found)


def outcome_of(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a check and return its result. If it raises an error, the result is a failure."""
    try:
        return {"passed": True, **check()}
    except Exception as error:
        return {"passed": False, "reason": f"{type(error).__name__}: {error}"[-3000:]}


@dataclass
class Attempt:
    """A finished process of the training program."""

    code: int
    text: str
    seconds: float
    events: list[AnyEvent] = field(default_factory=list)

    def last(self, kind: type[Any]) -> Any:
        """Return the last event of a type. Raise CheckError if there is none."""
        found = [event for event in self.events if isinstance(event, kind)]
        require(bool(found), f"exit code {self.code}: {self.text[-2000:]}")
        return found[-1]


class Runs:
    """Training runs in one directory. Language models train on the pages in docs/."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        text = directory / "data/text"
        text.mkdir(parents=True, exist_ok=True)
        pages = sorted((CHECKOUT / "docs").glob("*.md"))
        (text / "text.txt").write_text("".join(page.read_text() for page in pages))

    def start(self, name: str, settings: dict[str, Any]) -> subprocess.Popen[str]:
        """Start the training program."""
        values = {"data_dir": str(self.directory / "data"), "device": "cuda"}
        values |= settings | {"run_dir": str(self.run_dir(name))}
        arguments = TrainingConfig.model_validate(values).to_args()
        return subprocess.Popen(
            [sys.executable, "-m", "training", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=CHECKOUT,
            env=os.environ | {"OMP_NUM_THREADS": str(THREADS)},
        )

    def run(self, name: str, settings: dict[str, Any]) -> Attempt:
        """Run the training program until it exits."""
        return finish(self.start(name, settings), time.monotonic())

    def run_dir(self, name: str) -> Path:
        """Return the directory of a run."""
        return self.directory / re.sub(r"\W+", "-", name)


def finish(program: subprocess.Popen[str], started: float) -> Attempt:
    """Wait until a program exits, and return its exit code, output and events."""
    text, _ = program.communicate()
    events = [event for line in text.splitlines() if (event := parse(line)) is not None]
    return Attempt(program.returncode, text, round(time.monotonic() - started, 1), events)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(MAX_CONCURRENT)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def run_comparisons(runs: Runs) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and result of each run that is compared with a run on the CPU."""
    cpu_settings = {
        name: settings | CPU_SETTINGS | {"device": "cpu"} for name, settings in COMPARED.items()
    }
    keys = {name: json.dumps(settings, sort_keys=True) for name, settings in cpu_settings.items()}
    distinct = {keys[name]: settings for name, settings in cpu_settings.items()}
    print_line(f"{len(COMPARED)} runs on the GPU, compared with {len(distinct)} on the CPU …")
    with _pool() as on_cpu, _pool() as on_gpu:
        references = {
            key: on_cpu.submit(runs.run, f"cpu {number}", settings)
            for number, (key, settings) in enumerate(distinct.items())
        }
        attempts = {name: on_gpu.submit(runs.run, name, each) for name, each in COMPARED.items()}
        for name, attempt in attempts.items():
            reference = references[keys[name]].result()
            yield name, outcome_of(partial(_compare, attempt.result(), reference))


def _compare(attempt: Attempt, reference: Attempt) -> dict[str, Any]:
    ours, other = attempt.last(Epoch), reference.last(Epoch)
    attempt.last(Finished)
    started = attempt.last(Started)
    differences = {
        name: abs(getattr(ours, name) - getattr(other, name)) / max(1, getattr(other, name))
        for name in ("loss", "held_out_loss")
    }
    require(started.device == "cuda", started)
    require(max(differences.values()) <= TOLERANCE, differences)
    return {
        "difference": {name: round(value, 5) for name, value in differences.items()},
        "precision": started.line()["precision"],
        "channelsLast": started.line()["channels_last"],
        "seconds": attempt.seconds,
    }


def check_interruption(runs: Runs) -> dict[str, Any]:
    """Stop a run with SIGTERM, resume it, and compare it with an uninterrupted run."""
    program = runs.start("interrupted", TEXT | {"step_delay": 0.2})
    lines, started = [], time.monotonic()
    for line in program.stdout or ():
        lines.append(line)
        if isinstance(parse(line), Step):
            program.send_signal(signal.SIGTERM)
            break
    stopped = finish(program, started)
    require(stopped.code == exit_codes.INTERRUPTED, "".join(lines) + stopped.text)
    resumed = runs.run("interrupted", TEXT)
    require(resumed.last(Started).event == "resume", resumed.text)
    uninterrupted = runs.run("undisturbed", TEXT)
    again, other = resumed.last(Finished), uninterrupted.last(Finished)
    repeated = runs.run("repeated", TEXT).last(Finished)
    difference = abs(again.loss / other.loss - 1)
    require(difference <= TOLERANCE, difference)
    return {
        "relativeDifference": difference,
        "bitIdenticalAfterResume": again.sha256 == other.sha256,
        "bitIdenticalWhenRepeated": repeated.sha256 == other.sha256,
    }


def check_device_change(runs: Runs, first: str, then: str) -> dict[str, Any]:
    """Train an epoch on one device and two more on another, and check the accuracy."""
    name, fp32 = f"{first} to {then}", {"precision": "fp32"}
    runs.run(name, IMAGES | fp32 | {"device": first, "epochs": 1}).last(Finished)
    attempt = runs.run(name, IMAGES | fp32 | {"device": then})
    require(attempt.last(Started).event == "resume", attempt.text)
    result = attempt.last(Finished)
    # The first run's learning rate schedule ends after one epoch, so the losses are not compared.
    require(result.accuracy >= 0.9, result)
    return {"accuracy": result.accuracy, "resumedAtStep": attempt.last(Started).step}


def check_metrics(runs: Runs) -> dict[str, Any]:
    """Check the GPU metrics and the profile of a training run."""
    port = 19_400 + os.getpid() % 500
    settings = IMAGES | {"metrics_port": port, "step_delay": 0.1, "profile_steps": 3}
    started = time.monotonic()
    program, page = runs.start("observed", settings | {"profile_after": 2}), ""
    while program.poll() is None and "training_loss NaN" in (page or "training_loss NaN"):
        time.sleep(0.2)
        with suppress(urllib.error.URLError, ConnectionError):
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    values = dict(re.findall(r"^(training_gpu_\w+|training_loss) (\S+)$", page, re.MULTILINE))
    attempt = finish(program, started)
    require(attempt.code == 0, attempt.text)
    expected = {"training_gpu_memory_bytes", "training_gpu_utilization", "training_loss"}
    require(values.keys() == expected, values)
    (trace,) = runs.run_dir("observed").glob("profile/*.gz")
    kernels = gzip.decompress(trace.read_bytes()).count(b'"cat": "kernel"')
    require(kernels > 0, "the profile contains no GPU kernel")
    return {"metrics": {name: float(value) for name, value in values.items()}, "kernels": kernels}


def check_out_of_memory(runs: Runs) -> dict[str, Any]:
    """Check that the error message states a fix if a run exceeds the GPU memory."""
    settings = TEXT | {"model_options": LARGE_OPTIONS, "batch_size": 512, "keep_checkpoints": 1}
    attempt = runs.run("without memory", settings)
    error = attempt.last(Failed)
    states_fix = all(part in error.message for part in ("out of memory", "batch_size"))
    require(states_fix, error.message)
    require(attempt.code == exit_codes.FAILED, attempt.code)
    return {"message": error.message}


def check_index_error(runs: Runs) -> dict[str, Any]:
    """Check that the exit code after an out-of-range index prevents a restart."""
    attempt = runs.run("wrong index", IMAGES | {"model": f"{__name__}:OutOfRange"})
    error = attempt.last(Failed)
    require(attempt.code == exit_codes.BAD_INPUT, (attempt.code, error.message))
    require("device-side assert" in error.message, error.message)
    return {"message": error.message}


class OutOfRange(nn.Module):
    """A classifier that indexes its logits out of range after some steps."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), outputs)
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        self.calls += 1
        logits: Tensor = self.linear(images.flatten(1))
        index = torch.arange(logits.shape[1], device=logits.device)
        return logits[:, index + 1000 * (self.calls > 5)]


def check_lora(runs: Runs) -> dict[str, Any]:
    """Check that fine-tuning with LoRA lowers the loss of a trained language model."""
    runs.run("pretrained", TEXT).last(Finished)
    settings = TEXT | {"init_from": str(runs.run_dir("pretrained") / "export"), "lora_rank": 8}
    attempt = runs.run("adapted", settings)
    require(attempt.code == 0, attempt.text)
    # The pretrained run has already finished, so the program only reports its result again.
    before, after = runs.run("pretrained", TEXT).last(Finished), attempt.last(Finished)
    require(after.loss < before.loss, (before, after))
    return {"before": before.loss, "after": after.loss}


def check_expandable_segments(runs: Runs) -> dict[str, Any]:
    """Check that expandable segments are used even if they are enabled after importing PyTorch."""
    program = (
        "import torch; from training import accelerator; device = torch.device('cuda', 0); "
        "accelerator.configure(device); kept = torch.ones(2**20, device=device); "
        "print([segment['is_expandable'] for segment in torch.cuda.memory_snapshot()])"
    )
    command = [sys.executable, "-c", program]
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT).stdout
    require("True" in text, text)
    return {}


CHECKS: Final[dict[str, Callable[[Runs], dict[str, Any]]]] = {
    "SIGTERM and resume": check_interruption,
    "CPU checkpoint resumed on the GPU": partial(check_device_change, first="cpu", then="cuda"),
    "GPU checkpoint resumed on the CPU": partial(check_device_change, first="cuda", then="cpu"),
    "metrics and profile": check_metrics,
    "out of memory": check_out_of_memory,
    "index out of range on the GPU": check_index_error,
    "LoRA": check_lora,
    "expandable segments": check_expandable_segments,
}


def run_checks(runs: Runs) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and result of each check that is not a comparison with the CPU."""
    print_line(f"{len(CHECKS)} additional checks …")
    with _pool() as pool:
        found = pool.map(lambda check: outcome_of(partial(check, runs)), CHECKS.values())
        yield from zip(CHECKS, found, strict=True)
