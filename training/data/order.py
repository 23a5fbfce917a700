"""Random orders that read large files nearly one after the other."""

from collections.abc import Sequence

import numpy as np

from training.data.samples import Indices


def local_order(sizes: Sequence[int], window: int, random: np.random.Generator) -> Indices:
    """All numbers from 0 to the sum of `sizes`, each once, where files have `sizes` samples.

    The files come in random order, and samples are mixed among `window` files at a time: only so
    many files are read at once, and each is read completely before the next ones begin.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    files = random.permutation(len(sizes))
    mixed = [np.empty(0, np.int64)]
    for first in range(0, len(files), window):
        numbers = [
            np.arange(ends[file] - sizes[file], ends[file])
            for file in files[first : first + window]
        ]
        mixed.append(random.permutation(np.concatenate(numbers)))
    return np.concatenate(mixed)
