"""Training with Lightning.

Run it with `python -m training.launch --nproc-per-node=2 with_lightning.py STEPS`.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from workload.run import Run


class RunCallback(Callback):  # type: ignore[misc]
    """Callback that reports steps and saves a checkpoint every 100 steps and after SIGTERM."""

    def __init__(self, run: Run) -> None:
        self.run, self.handler = run, signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Let the run handle SIGTERM, so that all ranks stop after the same step."""
        signal.signal(signal.SIGTERM, self.handler)

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        """Report the step, and save the Trainer's state if a checkpoint is due."""
        _, outputs, *_ = arguments
        step = trainer.global_step
        self.run.step(
            step,
            outputs["loss"],
            lambda directory: trainer.save_checkpoint(directory / "state.ckpt"),
            due=step % 100 == 0,
        )


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches for the steps from `done + 1` to `steps`."""

    def __init__(self, done: int, steps: int) -> None:
        self.steps = range(done + 1, steps + 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples of each step. They are the same after a restart."""
        for step in self.steps:
            seed = step * 1000 + dist.get_rank()
            x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
            yield x, x[:, :10].argmax(1)


class Net(LightningModule):  # type: ignore[misc]
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(steps: int) -> None:
    """Train with Lightning's loop inside a run."""
    # The run needs the process group before Lightning would create it.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    net = Net()
    with Run(steps) as run:
        done = run.resume()
        trainer = Trainer(
            accelerator="auto" if torch.cuda.is_available() else "cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=dist.get_world_size() // int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy="ddp",
            max_steps=steps,
            callbacks=[RunCallback(run)],
            # The run writes its own checkpoints and progress lines.
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
        )
        data = DataLoader(Batches(done, steps), batch_size=None)
        trainer.fit(net, data, ckpt_path=str(run.newest / "state.ckpt") if run.newest else None)

        def write(directory: Path) -> None:
            save_file(net.layers.state_dict(), directory / "model.safetensors")

        run.finish(write, {})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
