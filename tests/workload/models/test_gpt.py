import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from workload.models.gpt import Gpt, rotated, rotations


def small_gpt(dropout: float = 0.0) -> Gpt:
    torch.manual_seed(0)
    return Gpt(tokens=20, context=16, layers=2, heads=2, width=16, dropout=dropout).eval()


@settings(max_examples=20)
@given(position=st.integers(0, 15), seed=st.integers(0, 1000))
def test_attention_is_causal(position: int, seed: int) -> None:
    model = small_gpt()
    tokens = torch.randint(20, (1, 16), generator=torch.Generator().manual_seed(seed))
    changed_tokens = tokens.clone()
    changed_tokens[0, position] = (changed_tokens[0, position] + 1) % 20
    with torch.no_grad():
        outputs, changed_outputs = model(tokens), model(changed_tokens)
    assert torch.equal(outputs[:, :position], changed_outputs[:, :position])
    assert not torch.equal(outputs[:, position], changed_outputs[:, position])


def test_prefix_has_the_same_outputs_as_in_the_full_sequence() -> None:
    model = small_gpt()
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.allclose(model(tokens[:, :5]), model(tokens)[:, :5], atol=1e-6)


def test_input_longer_than_the_context_is_rejected() -> None:
    with pytest.raises(ValueError, match="17 tokens exceed the context of 16"):
        small_gpt()(torch.zeros(1, 17, dtype=torch.int64))


@settings(max_examples=20)
@given(distance=st.integers(0, 20), start=st.integers(0, 40))
def test_dot_products_of_rotated_vectors_depend_only_on_their_distance(
    distance: int, start: int
) -> None:
    x, y = torch.randn(2, 8, generator=torch.Generator().manual_seed(distance))
    cos, sin = rotations(61, 8, torch.device("cpu"))

    def product(first: int, second: int) -> float:
        rotated_x = rotated(x, (cos[first], sin[first]))
        return float(rotated_x @ rotated(y, (cos[second], sin[second])))

    assert product(start, start + distance) == pytest.approx(product(0, distance), abs=1e-4)


def test_rotation_preserves_norms() -> None:
    x = torch.randn(2, 3, 5, 8)
    rotated_x = rotated(x, rotations(5, 8, x.device))
    assert torch.allclose(rotated_x.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.equal(rotated_x[:, :, 0], x[:, :, 0])


def test_state_dict_contains_each_parameter_once_and_no_buffers() -> None:
    model = small_gpt()
    assert [*model.buffers()] == []
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    storages = [weight.data_ptr() for weight in model.state_dict().values()]
    assert len(set(storages)) == len(storages)


def test_dropout_is_active_only_in_training_mode() -> None:
    model = small_gpt(dropout=0.5)
    tokens = torch.arange(16)[None]
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


def test_initial_predictions_are_uniform() -> None:
    model = Gpt(tokens=256, context=32, layers=4, heads=4, width=128)
    tokens = torch.randint(256, (4, 33))
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss) == pytest.approx(5.55, abs=0.1)  # ln(256)
