import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from inference.engine.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def batch():
    return [np.ones(2**18, np.float32) for _ in range(16)]

batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt")
def test_a_batch_gets_the_memory_of_the_one_before() -> None:
    given_back, kept = faults("leave"), faults("keep")
    assert kept < 100
    assert kept < given_back / 10
