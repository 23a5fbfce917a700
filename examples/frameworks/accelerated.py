"""Training loop with Accelerate.

Run it with `python -m training.launch_accelerate --num_processes=2 … accelerated.py STEPS`.
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from workload.run import Run


def main(steps: int) -> None:
    """Train and export the model. Save a checkpoint every 100 steps and after SIGTERM."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    x = torch.randn(steps * 32 * accelerator.num_processes, 16)
    data = TensorDataset(x, x[:, :4].argmax(1))
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Use a separate generator: drawing from the global generator would change a resumed run.
    loader = DataLoader(data, batch_size=32, generator=torch.Generator())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    set_seed(1, device_specific=True)

    with Run(steps) as run:
        done = run.resume(lambda directory: accelerator.load_state(str(directory)))
        for step, (inputs, targets) in enumerate(
            accelerator.skip_first_batches(loader, done), done + 1
        ):
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.step(
                step,
                loss,
                lambda directory: accelerator.save_state(str(directory)),
                due=step % 100 == 0,
            )
        plain = accelerator.unwrap_model(model).eval()
        x, y = (tensor[:1000].to(accelerator.device) for tensor in data.tensors)
        accuracy = (plain(x).argmax(1) == y).float().mean().item()
        run.finish(
            lambda directory: accelerator.save_model(plain, str(directory)), {"accuracy": accuracy}
        )
    accelerator.end_training()


if __name__ == "__main__":
    main(int(sys.argv[1]))
