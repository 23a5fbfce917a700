import torch

from tests.training.custom_models import Block, Deep
from training.config import TrainingConfig
from training.gang.distributed import joined
from training.gang.world import World
from training.parallel import Parallel

ALONE = World(rank=0, size=1, local_rank=0, master="")


def test_compile_applies_to_each_block() -> None:
    config = TrainingConfig.model_validate({"compile": True, "device": "cpu"})
    model = Deep(10, (1, 8, 8))
    with joined(ALONE, torch.device("cpu"), 60):
        Parallel(model, config, torch.device("cpu"))
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert len(blocks) == 2
    assert all(block._compiled_call_impl is not None for block in blocks)
