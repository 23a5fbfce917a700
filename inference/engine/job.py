"""What a worker is started with. No torch: the server makes it."""

from dataclasses import dataclass
from typing import Final

from inference.config import Backend
from inference.engine.arena import Arena, new_arena
from workload.configuration import DeviceName

SLOTS: Final = 2
"""Batches that a worker may have at once: the one it computes, and the next."""


@dataclass(frozen=True)
class Job:
    """What a worker serves, and where."""

    folder: str
    manifest: str
    """As JSON: the weights must be these, even when the folder has others by now."""
    handler: str
    backend: Backend
    own: str
    device: DeviceName
    index: int
    """Of the device."""
    threads: int
    largest_batch: int
    scratch: str
    """A folder for what is compiled at the start."""


@dataclass(frozen=True)
class Slot:
    """Where one batch comes from and goes to."""

    inputs: Arena
    outputs: Arena

    def close(self) -> None:
        """Give the memory back."""
        self.inputs.close()
        self.outputs.close()


def new_slots() -> tuple[Slot, ...]:
    """All that one worker needs."""
    return tuple(Slot(new_arena(), new_arena()) for _ in range(SLOTS))
