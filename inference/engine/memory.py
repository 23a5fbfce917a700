"""Memory that one batch frees is kept for the next."""

import ctypes
from typing import Final

# Of <malloc.h>: see mallopt(3).
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3

KEPT: Final = 256 * 2**20
"""Free bytes at the end of the heap above which they are given back."""

_MOST_IN_HEAP: Final = 32 * 2**20
"""The largest that glibc takes: blocks above it are mapped on their own."""


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed; False where the C library is another.

    As it is, it gives the activations of a small network back to the system after every batch, and
    gets them again page by page, each filled with zeros: up to half of the time of such a batch.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_MMAP_THRESHOLD, _MOST_IN_HEAP), (_TRIM_THRESHOLD, KEPT), (_TOP_PAD, 2**24))
    return all(mallopt(name, value) == 1 for name, value in settings)
