"""Freed memory: reused by the next batch, or returned to the system."""

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt"
)

PROGRAM = """
import resource
import numpy as np
from inference.allocator import keep_freed_memory

def batch():
    return [np.ones(2**18, np.float32) for _ in range(16)]

def faults():
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

returned = faults()
assert keep_freed_memory()
print(returned, faults())
"""


def test_freed_memory_is_reused_by_the_next_batch() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True)
    faults_before, faults_after = map(int, result.stdout.split())
    assert faults_after < 100
    assert faults_after < faults_before / 10


BODIES = """
import random
import resource
from inference.allocator import return_large_blocks
{first}
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

# The order decides how much the default keeps: from 20 to 300 MiB.
random.seed(0)
before = resident()
bodies, between = [bytearray() for _ in range(20)], []
for _ in range(20 * 64 * 2):
    number = random.randrange(20)
    bodies[number] += bytes(2**18)
    if len(bodies[number]) == 2**24:
        bodies[number] = bytearray()
        between.append(bytes(3000))
del bodies
print(resident() - before)
"""


def kept_after_large_bodies(statement: str) -> int:
    """Return the memory (MiB) that a process keeps after freeing large bodies."""
    program = BODIES.format(first=statement)
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return int(result.stdout) >> 20


def test_memory_of_large_bodies_is_returned_to_the_system() -> None:
    assert kept_after_large_bodies("return_large_blocks()") < kept_after_large_bodies("") / 2


FRAGMENTS = """
import resource
from inference.allocator import return_free_memory, return_large_blocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

return_large_blocks()
before = resident()
bodies, between = [], []
for _ in range(1000):
    bodies.append(b"x" * 60_000)
    between.append(b"x" * 3000)
del bodies
freed = resident()
return_free_memory()
print(freed - before, resident() - before)
"""


def test_free_memory_between_blocks_in_use_is_returned_to_the_system() -> None:
    result = subprocess.run([sys.executable, "-c", FRAGMENTS], check=True, capture_output=True)
    freed, returned = map(int, result.stdout.split())
    assert returned < freed / 2
