import numpy as np
import pytest

from training.data import DataError, Images, enlarge_images
from training.data.images import EnlargedImages, with_shape


def test_images_are_enlarged_and_centered() -> None:
    image = Images(np.array([[[[1, 2], [3, 4]]]], np.uint8), np.array([0]), divisor=4)
    assert enlarge_images(image, (1, 5, 5)).pixels[0, 0].tolist() == [
        [1, 1, 2, 2, 0],
        [1, 1, 2, 2, 0],
        [3, 3, 4, 4, 0],
        [3, 3, 4, 4, 0],
        [0, 0, 0, 0, 0],
    ]
    assert enlarge_images(image, (3, 2, 2)).pixels[0].tolist() == [[[1, 2], [3, 4]]] * 3


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 31, 64), (1, 32, 32), (64,)])
def test_images_are_never_reduced_in_size_or_converted_to_grayscale(shape: tuple[int, ...]) -> None:
    images = Images(np.zeros((1, 3, 32, 32), np.uint8), np.array([0]), divisor=255)
    with pytest.raises(DataError, match="images of 3x32x32 do not fit"):
        with_shape(images, (3, 32, 32), shape)


def test_enlarging_in_batches_gives_the_same_images() -> None:
    random = np.random.default_rng(0)
    images = Images(random.integers(0, 256, (2000, 1, 8, 8), np.uint8), np.arange(2000), divisor=16)
    large = with_shape(images, (1, 8, 8), (3, 224, 224))
    assert isinstance(large, EnlargedImages)
    assert (len(large), large.divisor) == (2000, 16)
    some = np.array([1999, 3])
    pixels, labels = large.batch(some)
    few = Images(images.pixels[some], some, divisor=16)
    assert np.array_equal(pixels, enlarge_images(few, (3, 224, 224)).pixels)
    assert np.array_equal(labels, some)
    assert sorted(large.order(random)) == list(range(2000))
