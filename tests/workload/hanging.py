"""A program that beats a watchdog four times, then hangs as its argument selects, or exits."""

import ctypes
import sys
import time

from workload.run import Watchdog


def stuck(how: str) -> None:
    if how == "sleeps":
        time.sleep(300)
    elif how == "holds the GIL":
        ctypes.PyDLL(None).sleep(300)


with Watchdog(1) as watchdog:
    for _ in range(4):
        time.sleep(0.3)
        watchdog.beat()
    stuck(sys.argv[1])
time.sleep(1.2)
