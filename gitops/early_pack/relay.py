"""What the engine runs in place of the pack: passes on what the pack says, from pipes beside it."""

import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def _opened(name: str) -> BinaryIO:
    return (Path(__file__).parent / name).open("rb", buffering=0)


def _pass_on(said: BinaryIO, to: BinaryIO) -> None:
    while part := said.read(65536):
        to.write(part)
        to.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Both at once: a pipe whose pack has ended cannot be opened any more.
    with _opened("stdout") as out, _opened("stderr") as error:
        errors = threading.Thread(target=_pass_on, args=(error, sys.stderr.buffer), daemon=True)
        errors.start()
        # The first line is the port at which the pack answers; the end is that of the pack.
        _pass_on(out, sys.stdout.buffer)
        errors.join()
