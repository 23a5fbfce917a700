import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.files import write_published
from training.config import DATASETS
from training.data import DataError, Images, builtin, held_out_digits, load
from training.data.samples import UnavailableError, digest_of, local_order, spread, visible_files
from training.settings import IMAGES
from workload.catalog import MODELS

NOWHERE = Path("/nowhere")
SIZES = st.lists(st.integers(0, 9), max_size=12)


@pytest.mark.parametrize(
    ("length", "count", "expected"),
    [(10, 4, [0, 3, 6, 9]), (3, 5, [0, 1, 2]), (10, 1, [0]), (7, 2, [0, 6])],
)
def test_spread_indices_are_evenly_spaced_and_include_the_first_and_last(
    length: int, count: int, expected: list[int]
) -> None:
    assert spread(length, count).tolist() == expected


def test_held_out_digits_are_fixed_and_contain_every_class() -> None:
    pixels, labels = held_out_digits()
    assert pixels.shape == (360, 1, 8, 8)
    assert np.array_equal(held_out_digits()[0], pixels)
    assert np.bincount(labels).min() >= 34
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_runs_are_evaluated_on_the_held_out_digits() -> None:
    data = load("digits", NOWHERE, (1, 8, 8), seed=5)
    assert len(data.train) + len(data.held_out) == 1797
    assert isinstance(data.held_out, Images)
    assert np.array_equal(data.held_out.scaled(), held_out_digits()[0])
    # A run can only resume with the data set that it started with.
    assert data.identity == "3771acc0a4d74beba02e1623131aa748694a1808fff25b97d9067ea139867afb"


@pytest.mark.parametrize("name", ["digits", "glyphs"])
def test_built_in_data_sets_do_not_depend_on_the_seed(name: str) -> None:
    first, second = (load(name, NOWHERE, None, seed) for seed in (1, 2))
    for images, other_images in ((first.train, second.train), (first.held_out, second.held_out)):
        assert isinstance(images, Images)
        assert isinstance(other_images, Images)
        assert np.array_equal(images.pixels, other_images.pixels)
        assert set(images.labels) == set(range(first.outputs)) == set(range(len(first.classes)))
    assert isinstance(first.train, Images)
    assert isinstance(first.held_out, Images)
    trained = {image.tobytes() for image in first.train.pixels}
    shared = sum(image.tobytes() in trained for image in first.held_out.pixels)
    assert shared == 0


def test_synthetic_images_depend_on_the_seed() -> None:
    first, same, different = (
        load("synthetic", NOWHERE, (1, 8, 8), seed).train.batch(np.arange(9))[0]
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, different)


FROM_FILES = {"mnist", "fashion-mnist", "cifar10", "cifar100"}


@pytest.mark.parametrize("model", [name for name, known in MODELS.items() if known.shape])
def test_compatible_data_sets_are_converted_to_the_input_shape_of_the_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path)
    monkeypatch.setattr(builtin, "GLYPHS_TRAIN", 20)
    monkeypatch.setattr(builtin, "GLYPHS_HELD_OUT", 10)
    shape = MODELS[model].shape
    fitting = set(DATASETS.get(model, IMAGES))
    for name in ({"digits", "glyphs", "synthetic"} | FROM_FILES) & fitting:
        data = load(name, tmp_path, shape, seed=0)
        assert data.shape == shape
        assert data.outputs == len(data.classes)
        for part in (data.train, data.held_out):
            pixels, labels = part.batch(np.arange(2))
            assert (pixels.shape[1:], pixels.dtype, part.divisor) in (
                (shape, np.uint8, 255), (shape, np.uint8, 16),
            )  # fmt: skip
            assert labels.dtype == np.int64
            assert pixels.strides == np.empty(pixels.shape, np.uint8).strides


def test_a_custom_model_receives_samples_unchanged(tmp_path: Path) -> None:
    write_published(tmp_path)
    shapes = {name: load(name, tmp_path, None, seed=0).shape for name in sorted(FROM_FILES)}
    assert shapes == {
        "cifar10": (3, 32, 32),
        "cifar100": (3, 32, 32),
        "fashion-mnist": (1, 28, 28),
        "mnist": (1, 28, 28),
    }


def test_error_for_missing_prepared_data_mentions_the_command(tmp_path: Path) -> None:
    for name in ("shards", "tokens"):
        with pytest.raises(DataError, match=r"manifest.json is missing: .*training.data prepare"):
            load(name, tmp_path, None, seed=0)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EACCES, DataError), (errno.ESTALE, UnavailableError)]
)
def test_directory_that_cannot_be_listed_is_an_error(
    code: int, kind: type[DataError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(code, "failed", path)

    monkeypatch.setattr("os.scandir", fail)
    with pytest.raises(DataError, match=f"^{tmp_path} cannot be read: failed$") as raised:
        visible_files(tmp_path)
    assert type(raised.value) is kind


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
