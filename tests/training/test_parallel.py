from functools import partial

import pytest
import torch

from tests.training.custom_models import Block, Deep
from training.config import TrainingConfig
from training.gang.distributed import joined
from training.gang.world import World
from training.parallel import Parallel

ALONE = World(rank=0, size=1, local_rank=0, master="")


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compile_applies_to_each_block(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    config = TrainingConfig.model_validate(
        {"compile": True, "activation_checkpointing": checkpointing}
    )
    model = Deep(10, (1, 8, 8))
    with joined(ALONE, torch.device("cpu"), 60):
        Parallel(model, config, torch.device("cpu"))(torch.rand(4, 1, 8, 8)).sum().backward()
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert len(blocks) == 2
    # A compiled block does not count its calls.
    assert [block.calls for block in blocks] == [0, 0]
