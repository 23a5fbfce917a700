import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.data.samples import digest_of, local_order

SIZES = st.lists(st.integers(0, 9), max_size=12)


@given(sizes=SIZES, window=st.integers(1, 5), seed=st.integers(0, 99))
def test_order_contains_every_sample_once_and_is_reproducible(
    sizes: list[int], window: int, seed: int
) -> None:
    order = local_order(sizes, window, np.random.default_rng(seed))
    assert sorted(order) == list(range(sum(sizes)))
    assert order.dtype == np.int64
    assert np.array_equal(order, local_order(sizes, window, np.random.default_rng(seed)))


@given(sizes=st.lists(st.integers(1, 9), max_size=12), window=st.integers(1, 5))
def test_only_a_few_files_are_read_at_a_time(sizes: list[int], window: int) -> None:
    order = local_order(sizes, window, np.random.default_rng(0))
    files = np.repeat(np.arange(len(sizes)), sizes)[order]
    last_met = {file: position for position, file in enumerate(files)}
    first_met = {file: position for position, file in reversed(list(enumerate(files)))}
    for position in range(len(files)):
        open_files = [file for file in first_met if first_met[file] <= position <= last_met[file]]
        assert len(open_files) <= window


def test_order_shuffles_files_and_samples_across_files() -> None:
    order = local_order([50] * 20, 4, np.random.default_rng(0))
    files = np.repeat(np.arange(20), 50)[order]
    assert set(files[:200]) != {0, 1, 2, 3}
    assert len(set(files[:40])) == 4


def test_a_digest_depends_on_values_types_and_shapes() -> None:
    """Arrays with equal bytes but different types or shapes are different data sets."""
    pixels, labels = np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(3)
    digest = digest_of(pixels, labels)
    assert digest == digest_of(pixels.copy(), labels.copy())
    others = [pixels.reshape(4, 3), pixels.view(np.int8), pixels + 1]
    assert len({digest, *(digest_of(other, labels) for other in others)}) == 4
    # The digest of a strided view depends only on its values.
    assert digest_of(pixels[:, ::2]) == digest_of(pixels[:, ::2].copy())
