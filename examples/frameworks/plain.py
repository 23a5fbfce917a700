"""Training loop in plain PyTorch with DDP.

Run it with `python -m training.launch --nproc-per-node=2 plain.py STEPS`.
"""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workload.run import Run


class Net(nn.Module):
    """A model that the model server can also build, as `plain:Net`."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 32), nn.ReLU(), nn.Linear(32, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(x)
        return logits


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the samples of a step. They are the same after a restart."""
    x = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(step * 1000 + rank))
    return x, x.flatten(1)[:, :10].argmax(1)


def main(steps: int) -> None:
    """Train and export the model. Save a checkpoint every 100 steps and after SIGTERM."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    torch.manual_seed(0)
    net = Net(10, (1, 8, 8)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def save(directory: Path) -> None:
        if dist.get_rank() == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, directory / "state.pt")

    def load(directory: Path) -> None:
        state = torch.load(directory / "state.pt", map_location="cpu", weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    with Run(steps) as run:
        for step in range(run.resume(load) + 1, steps + 1):
            x, y = (tensor.to(device) for tensor in batch(step, dist.get_rank()))
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.step(step, loss, save, due=step % 100 == 0)
        x, y = (tensor.to(device) for tensor in batch(0, 0))
        accuracy = (net(x).argmax(1) == y).float().mean().item()
        run.finish(
            lambda directory: save_file(net.state_dict(), directory / "model.safetensors"),
            {"accuracy": accuracy},
            model="plain:Net",
            input_shape=[1, 8, 8],
            outputs=10,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
