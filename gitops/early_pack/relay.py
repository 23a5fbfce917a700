"""What the engine runs in place of the pack: passes on what the pack says, from pipes beside it."""

import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def _pass_on(name: str, to: BinaryIO) -> None:
    with (Path(__file__).parent / name).open("rb", buffering=0) as said:
        while part := said.read(65536):
            to.write(part)
            to.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    errors = threading.Thread(target=_pass_on, args=("stderr", sys.stderr.buffer), daemon=True)
    errors.start()
    # The first line is the port at which the pack answers; the end is that of the pack.
    _pass_on("stdout", sys.stdout.buffer)
    errors.join()
