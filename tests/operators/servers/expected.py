"""A small language model trained on one sentence, and its expected completion of a text."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from training.data import Dataset, load
from workload.models import build
from workload.models.gpt import Gpt

SENTENCE = "The quick brown fox jumps over the lazy dog. "


def trained(folder: Path) -> tuple[Dataset, Gpt]:
    """Return the data set and a model that was trained on it for a few steps."""
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.txt").write_text(SENTENCE * 60)
    options = {"context": 64, "layers": 2, "heads": 2, "width": 48}
    data = load("text", folder, (64,), seed=0)
    torch.manual_seed(0)
    model = build("gpt", options, data.outputs, data.shape)
    assert isinstance(model, Gpt)
    inputs, targets = map(torch.from_numpy, data.train.batch(np.arange(16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        loss = cross_entropy(model(inputs.long()).flatten(0, 1), targets.long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return data, model.eval()


@torch.no_grad()
def completion(model: Gpt, prompt: str, count: int) -> str:
    """Return the most probable continuation."""
    tokens = torch.tensor([list(prompt.encode())])
    for _ in range(count):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return bytes(tokens[0, -count:].tolist()).decode()
