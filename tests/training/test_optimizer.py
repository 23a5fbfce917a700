import pytest
import torch
from torch import nn

from training.config import TrainingConfig
from training.optimizer import learning_rate, state_bytes


def rates(**settings: object) -> list[float]:
    config = TrainingConfig.model_validate({"learning_rate": 0.5, **settings})
    return [learning_rate(config, step / 1000) for step in range(1001)]


@pytest.mark.parametrize("schedule", ["one-cycle", "linear"])
def test_the_learning_rate_warms_up_and_decays_to_nearly_zero(schedule: str) -> None:
    learning_rates = rates(schedule=schedule)
    peak = learning_rates.index(max(learning_rates))
    assert max(learning_rates) == pytest.approx(0.5)
    assert peak == 200
    assert learning_rates[: peak + 1] == sorted(learning_rates[: peak + 1])
    assert learning_rates[peak:] == sorted(learning_rates[peak:], reverse=True)
    assert 0 < learning_rates[-1] < 0.005


def test_constant_schedule_is_constant_after_the_warm_up() -> None:
    learning_rates = rates(schedule="constant", warm_up=0.1)
    assert learning_rates[0] == pytest.approx(0.05)
    assert set(learning_rates[100:]) == {0.5}


def test_learning_rate_starts_at_its_peak_without_warm_up() -> None:
    assert rates(warm_up=0)[0] == 0.5


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_estimated_size_of_a_checkpoint_equals_the_size_of_its_tensors(
    name: str, average: float
) -> None:
    network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    network[2].requires_grad_(False)
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = (
        torch.optim.AdamW(trained) if name == "adamw" else torch.optim.SGD(trained, momentum=0.9)
    )
    network(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    slots = [each for state in optimizer.state.values() for each in state.values()]
    stored = [*network.parameters(), *network.buffers(), *(each for each in slots if each.dim())]
    averages = trained if average else []
    config = TrainingConfig.model_validate({"optimizer": name, "ema_decay": average})
    assert state_bytes(network, config) == sum(each.nbytes for each in (*stored, *averages))
