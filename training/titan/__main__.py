"""Run torchtitan on the platform: `python -m training.titan --module NAME --config NAME`.

workload.run handles the run directory, SIGTERM, exit codes, progress events, metrics and the
export. torchtitan handles the model, parallelism, data and checkpoints. Options that are not listed
here are passed to torchtitan.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from training.titan.without_gpu import use_cpu
from workload import exit_codes
from workload.exit_codes import FatalError
from workload.files import exists, is_directory, write_atomically
from workload.report import fail
from workload.run import Run

if not torch.cuda.is_available():
    use_cpu()

from torchtitan.components.checkpointer.dcp import AsyncMode
from torchtitan.config import TORCH_DTYPE_MAP, ConfigManager
from torchtitan.distributed.utils import dist_max
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

CHECKPOINTS: Final = "checkpoints"
HUGGING_FACE: Final = "huggingface"
"""Directory in the export for servers that read Hugging Face directories, such as vLLM."""

CONFIGURATION_ERRORS: Final = (ValueError, AssertionError, FileNotFoundError, NotImplementedError)
"""Exceptions that torchtitan raises for a configuration that would fail on every attempt."""


class RunTrainer(Trainer):  # type: ignore[misc]
    """torchtitan's trainer, connected to workload.run."""

    run: Run
    loaded: int | None = None
    loss: float | None = None

    def should_continue_training(self) -> bool:
        """Report the previous step; save and exit if the run has to stop.

        Return False after the last step.
        """
        if self.loaded is None:
            self.loaded = self.step
            self.run.resumed(self.step)
        elif self.step > self.loaded:
            self.run.report(self.step, self.loss)
            self._report_checkpoint()
        if self.run.should_stop():
            self._save()
            self.run.interrupt(self.step)
        return bool(super().should_continue_training())

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Train one step. Raise FatalError if the loss is not finite."""
        try:
            super().train_step(data_iterator)
        except RuntimeError as error:
            if "Loss is not finite" in str(error):
                raise FatalError(str(error)) from None
            raise
        if self.step == self.config.training.steps and torch.distributed.get_rank() == 0:
            # Write the file before the last checkpoint: a process that resumes from that checkpoint
            # has no steps left to train.
            write_atomically(self._loss_file, json.dumps(self.loss).encode())

    def metrics(self) -> dict[str, float]:
        """Return the last loss, even if an earlier process trained the last step."""
        if self.loss is None and exists(self._loss_file):
            self.loss = json.loads(self._loss_file.read_bytes())
        return {} if self.loss is None else {"loss": self.loss}

    @property
    def _loss_file(self) -> Path:
        return self.run.directory / "loss.json"

    def export(self, directory: Path) -> None:
        """Write the weights from all ranks.

        The Hugging Face format is used if torchtitan can convert this model to it.
        """
        manager, adapter = self.checkpointer, self.config.model_spec.state_dict_adapter
        dtype = TORCH_DTYPE_MAP[self.config.checkpoint.export_dtype]
        weights = {
            name: value.to(dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in manager.states["model"].state_dict().items()
        }
        target = str(directory / HUGGING_FACE) if adapter else str(directory / "model")
        manager.dcp_save(
            weights, checkpoint_id=target, async_mode=AsyncMode.DISABLED, to_hf=bool(adapter)
        )

    def _report_checkpoint(self) -> None:
        """Report the newest complete checkpoint: the previous one if saving is asynchronous."""
        step, interval = self.step, self.config.checkpoint.interval
        if self.config.checkpoint.async_mode != AsyncMode.DISABLED:
            step -= interval
        if self.step % interval == 0 and step > (self.loaded or 0):
            self.run.saved(step)

    def _save(self) -> None:
        """Save the state now, unless it has just been saved."""
        if self.step > (self.loaded or 0) and self.step % self.checkpointer.interval:
            self.checkpointer.interval = 1
            self.checkpointer.save(self.step)
        self.checkpointer.maybe_wait_for_saving()


def main(arguments: list[str]) -> None:
    """Train the model and export its weights."""
    ours, options = parse(arguments)
    init_logger()
    with exit_on_bad_input():
        config = configure(options)
        trainer = RunTrainer(config)
    with Run(
        config.training.steps,
        log_every=config.metrics.log_freq,
        hang_timeout=ours.hang_timeout,
        metrics_port=ours.metrics_port,
    ) as run:
        trainer.run = run
        keep_losses(trainer)
        trainer.train()
        unfinished = run.directory / f".export-{config.training.steps}.tmp"
        trainer.export(unfinished)
        trainer.close()
        run.finish(
            lambda target: collect(unfinished, Path(config.hf_assets_path), target),
            trainer.metrics(),
            torchtitan={"module": config.model_spec.name, "flavor": config.model_spec.flavor},
        )
    torch.distributed.destroy_process_group()


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return this program's options and torchtitan's."""
    parser = argparse.ArgumentParser(
        prog="python -m training.titan",
        add_help=False,
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="To list a configuration's options: --module llama3 --config llama3_8b --help",
    )
    parser.add_argument("--module", help="torchtitan module of the model, such as llama3")
    parser.add_argument("--config", help="configuration of the module, such as llama3_8b")
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="port for Prometheus metrics; 0 disables it"
    )
    parser.add_argument(
        "--hang-timeout",
        type=float,
        default=1800,
        help="seconds without a step before the process exits with code 76; 0 disables this",
    )
    ours, options = parser.parse_known_args(arguments)
    if not ours.module and {"-h", "--help"} & set(options):
        parser.print_help()
        raise SystemExit(0)
    selected = {"--module": ours.module, "--config": ours.config}
    return ours, [*options, *(f"{name}={value}" for name, value in selected.items() if value)]


def configure(options: list[str]) -> Any:
    """Return torchtitan's configuration, with all output in the run's directory."""
    config = ConfigManager().parse_args(options)
    config.dump_folder = os.environ.get("RUN_DIR", "run")
    config.checkpoint.enable = True
    config.checkpoint.folder = CHECKPOINTS
    # Make the last checkpoint complete: a run cannot resume from one that contains only weights.
    config.checkpoint.last_save_model_only = config.checkpoint.last_save_in_hf = False
    if not torch.cuda.is_available():
        config.training.disable_cuda_graphs = True
    return config


@contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Exit with code 64 if the configuration would fail on every attempt."""
    try:
        yield
    except SystemExit as error:
        # The parser has already printed the error.
        raise SystemExit(exit_codes.BAD_INPUT if error.code else 0) from None
    except CONFIGURATION_ERRORS as error:
        raise SystemExit(fail(error, exit_codes.BAD_INPUT)) from error


def keep_losses(trainer: RunTrainer) -> None:
    """Make the trainer store the losses that torchtitan logs, and make it log the last one."""
    processor, steps = trainer.metrics_processor, trainer.config.training.steps
    log, should_log = processor.log, processor.should_log

    def keep_loss(step: int, loss: float, *rest: Any, **named: Any) -> None:
        # Only the last stage of a pipeline computes the loss; other stages log a negative value.
        stages = trainer.parallel_dims.get_optional_mesh("pp")
        trainer.loss = dist_max(torch.tensor(loss, device=trainer.device), stages)
        log(step, loss, *rest, **named)

    processor.log = keep_loss
    processor.should_log = lambda step: step == steps or should_log(step)


def collect(written: Path, assets: Path, target: Path) -> None:
    """Move the weights into the export, and copy the model's configuration and tokenizer there."""
    for path in sorted(written.iterdir()):
        shutil.rmtree(path / "sharded", ignore_errors=True)
        path.rename(target / path.name)
    written.rmdir()
    weights = target / HUGGING_FACE
    if is_directory(weights) and is_directory(assets):
        # `glob` returns nothing if the directory cannot be listed at the moment.
        for path in sorted(assets.iterdir()):
            if path.suffix in {".json", ".model", ".txt", ".jinja"} and "index" not in path.name:
                shutil.copyfile(path, weights / path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
