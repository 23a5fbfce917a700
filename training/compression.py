"""What the processes of DDP send one another about their gradients, made smaller."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from training.config import TrainingConfig

ITERATION: Final = "iteration"
RANDOM: Final = "random"
MATRICES: Final = ("error", "p_memory", "q_memory")
"""PowerSGDState's memories, each a tensor for each bucket: what was not sent yet, which a run must
not forget when it is interrupted, and the bases that the next step starts from."""


class Compression:
    """A communication hook of a DDP model, and what it remembers from step to step.

    bf16 and fp16 send two bytes a number; PowerSGD (Vogels et al., arXiv:1905.13727) sends matrices
    of a low rank instead of whole gradients once `powersgd_start` steps were sent as they are.
    """

    def __init__(self, config: TrainingConfig, model: DistributedDataParallel) -> None:
        self._powersgd: powerSGD_hook.PowerSGDState | None = None
        hook: Callable[..., Any]
        match config.gradient_compression:
            case "none":
                return
            case "bf16":
                state, hook = None, default_hooks.bf16_compress_hook
            case "fp16":
                state, hook = None, default_hooks.fp16_compress_hook
            case "powersgd":
                state, hook = self._begin(config), powerSGD_hook.powerSGD_hook
        model.register_comm_hook(state, hook)

    def tensors(self) -> dict[str, Tensor]:
        """What this process has to remember."""
        state = self._powersgd
        if state is None:
            return {}
        random: Any = state.rng.get_state()
        remembered = {
            ITERATION: torch.tensor([state.iter]),
            RANDOM: torch.tensor([*random[1].tolist(), random[2]]),
        }
        for name in MATRICES:
            for bucket, matrix in getattr(state, f"{name}_dict").items():
                remembered[f"{name}/{bucket}"] = matrix
        return remembered

    def restore(self, remembered: dict[str, Tensor], device: torch.device) -> None:
        """Go on from what `tensors` gave."""
        state = self._powersgd
        if state is None or not remembered:
            return
        *keys, position = remembered.pop(RANDOM).tolist()
        state.rng.set_state(("MT19937", np.array(keys, np.uint32), position, 0, 0.0))
        state.iter = int(remembered.pop(ITERATION))
        for key, matrix in remembered.items():
            name, bucket = key.split("/")
            getattr(state, f"{name}_dict")[int(bucket)] = matrix.to(device)

    def _begin(self, config: TrainingConfig) -> powerSGD_hook.PowerSGDState:
        self._powersgd = powerSGD_hook.PowerSGDState(
            process_group=dist.group.WORLD,
            matrix_approximation_rank=config.powersgd_rank,
            start_powerSGD_iter=config.powersgd_start,
            random_seed=config.seed,
        )
        return self._powersgd
