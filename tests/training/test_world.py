import pytest

from training.config import ConfigurationError
from training.world import World, choose_device, read_world, use_threads

COMPLETE = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


def test_without_ranks_a_process_is_a_gang_of_one() -> None:
    assert read_world({"MASTER_PORT": "1"}) == World(rank=0, size=1, local_rank=0, master="")


def test_a_scheduler_that_starts_one_process_a_pod_needs_no_local_rank() -> None:
    assert read_world(COMPLETE) == World(3, 4, 0, "job-master-0:23456")
    assert read_world(COMPLETE | {"LOCAL_RANK": "1"}).local_rank == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, "RANK is 4 and WORLD_SIZE is 4"),
        ({"RANK": "-1"}, "RANK is '-1': it must be a whole number"),
        ({"WORLD_SIZE": "0"}, "ranks go from 0"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is missing"),
        ({"RANK": None}, "RANK is missing"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is ''"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536"),
        ({"MASTER_PORT": None}, "MASTER_PORT is missing"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK is 'one'"),
    ],
)
def test_a_contradictory_environment_is_refused(
    change: dict[str, str | None], message: str
) -> None:
    environment = {k: v for k, v in (COMPLETE | change).items() if v is not None}
    with pytest.raises(ConfigurationError, match=message):
        read_world(environment)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu", local_rank=64).type == "cpu"
    with pytest.raises(ConfigurationError, match="--device=cpu"):
        choose_device("cuda", local_rank=64)


def test_the_number_of_threads_must_be_a_number() -> None:
    with pytest.raises(ConfigurationError, match="OMP_NUM_THREADS is 'all'"):
        use_threads({"OMP_NUM_THREADS": "all"})
