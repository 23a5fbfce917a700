"""Settings of glibc's allocator that determine which freed memory a process keeps."""

import ctypes
from typing import Final

# From <malloc.h>: see mallopt(3).
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3

KEPT_BYTES: Final = 256 * 2**20
"""Free memory (bytes) at the end of the heap above which glibc returns memory to the system."""

_MAX_HEAP_BLOCK: Final = 32 * 2**20
"""Maximum mmap threshold (bytes) that glibc accepts. Larger blocks are always mapped separately."""

_LARGE_BLOCK: Final = 2**20
"""Size (bytes) above which `return_large_blocks` makes glibc map blocks separately."""


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next batch; return False if glibc is not used.

    By default, glibc returns a small network's activations to the system after every batch and
    requests zeroed pages for the next one, which takes up to half of the batch time.
    """
    return _set(
        (_MMAP_THRESHOLD, _MAX_HEAP_BLOCK), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, 2**24)
    )


def return_large_blocks() -> bool:
    """Make glibc return large freed blocks to the system; return False if glibc is not used.

    By default, after a few large blocks have been freed, glibc allocates later large blocks in its
    heap and keeps them, so that memory usage stays at its peak.
    """
    return _set((_MMAP_THRESHOLD, _LARGE_BLOCK), (_TRIM_THRESHOLD, 16 * _LARGE_BLOCK))


def return_free_memory() -> None:
    """Make glibc return all free memory to the system, including memory between used blocks.

    By default, glibc returns only the free memory at the end of the heap.
    """
    # Other C libraries, such as musl, lack the functions of glibc's allocator.
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


def _set(*settings: tuple[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    return all(mallopt(name, value) == 1 for name, value in settings)
