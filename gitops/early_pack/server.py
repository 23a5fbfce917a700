"""Runs the policy pack in a folder until stdin ends: `python -P server.py FOLDER`.

Stdin is a pipe from whoever started it, which ends with that process however it ends, so a pack is
never left behind.
"""

import os
import runpy
import sys
import threading


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
