import torch
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoints.sharded_tensors import assign_tensors
from training.gang.world import World


@given(sizes=st.lists(st.integers(0, 50), max_size=30), processes=st.integers(1, 5))
def test_every_tensor_is_saved_by_one_process_and_none_has_much_more_than_another(
    sizes: list[int], processes: int
) -> None:
    tensors = {f"weight-{number}": torch.zeros(size) for number, size in enumerate(sizes)}
    shares = [
        assign_tensors(tensors, World(rank=rank, size=processes, local_rank=0, master=""))
        for rank in range(processes)
    ]
    assert sorted(name for mine in shares for name in mine) == sorted(tensors)
    loads = [sum(tensor.nbytes for tensor in mine.values()) for mine in shares]
    assert max(loads) - min(loads) <= 4 * max(sizes, default=0)
