"""A program that beats a watchdog four times, then hangs or exits, depending on its argument."""

import ctypes
import sys
import time

from workload.run import Watchdog


def hang(method: str) -> None:
    if method == "sleeps":
        time.sleep(300)
    elif method == "holds the GIL":
        ctypes.PyDLL(None).sleep(300)


with Watchdog(1) as watchdog:
    for _ in range(4):
        time.sleep(0.3)
        watchdog.beat()
    hang(sys.argv[1])
time.sleep(1.2)
