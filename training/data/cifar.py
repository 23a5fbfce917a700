"""CIFAR-10 and CIFAR-100 from their binary versions.

torchvision reads the Python version only, which is pickled: unpickling runs what a file says, and
a data set on shared storage can be anybody's. The binary version has the same images and is as
official (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from pathlib import Path
from typing import Final

import numpy as np

from training.data.images import Images
from training.data.samples import DataError
from training.data.vision import checked, missing

# fmt: off
CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on

PIXELS: Final = 3 * 32 * 32


def cifar10(folder: Path) -> tuple[Images, Images]:
    """Those to train on, and those held out. Raises DataError."""
    train = _read([folder / f"data_batch_{number}.bin" for number in range(1, 6)], 1, 10)
    return train, _read([folder / "test_batch.bin"], 1, 10)


def cifar100(folder: Path) -> tuple[Images, Images, tuple[str, ...]]:
    """Those to train on, those held out, and the classes. Raises DataError."""
    path = folder / "fine_label_names.txt"
    try:
        classes = tuple(path.read_text("ascii").split())
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(set(classes)) != 100:
        raise DataError(f"{path} has {len(set(classes))} different classes instead of 100")
    return _read([folder / "train.bin"], 2, 100), _read([folder / "test.bin"], 2, 100), classes


def _read(paths: list[Path], labels: int, classes: int) -> Images:
    """Records of one or two bytes of labels, of which the last is meant, and 3x32x32 of pixels."""
    length, parts = labels + PIXELS, []
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise _missing(path) from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        if not content or len(content) % length:
            raise DataError(f"{path} is damaged: {len(content)} bytes is no multiple of {length}")
        records = np.frombuffer(content, np.uint8).reshape(-1, length)
        pixels = records[:, labels:].reshape(-1, 3, 32, 32)
        parts.append(checked(path, pixels, records[:, labels - 1], classes))
    return Images(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
        white=255,
    )


def _missing(path: Path) -> DataError:
    for python in ("cifar-10-batches-py", "cifar-100-python"):
        if (path.parent.parent / python).is_dir() and python[:8] == path.parent.name[:8]:
            return DataError(
                f"{path} is missing: {path.parent.parent / python} is the pickled version, which "
                "is never read, so put the binary version beside it or have it fetched with "
                "download"
            )
    return missing(path)
