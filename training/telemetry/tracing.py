"""Profiles of selected steps: a Chrome trace per process, for Perfetto or TensorBoard."""

from pathlib import Path
from typing import Self

import torch
from torch.profiler import ProfilerActivity, profile, schedule


class Tracer:
    """Profiles `steps` steps after the first `after` steps of this process; 0 disables it.

    `before` is the number of steps of the run before this process started. After the last profiled
    step, or at exit, the trace is written to `folder`/rank-<rank>-step-<first>.json.gz, and
    `written` is set to its path. Raises OSError if it cannot be written.
    """

    def __init__(
        self, folder: Path, rank: int, steps: int, after: int, before: int, device: torch.device
    ) -> None:
        self._target = folder / f"rank-{rank}-step-{before + after + 1:08d}.json.gz"
        self._steps, self._after, self._device = steps, after, device
        self._profile: profile | None = None
        self._done = 0
        self.written: Path | None = None

    def __enter__(self) -> Self:
        if not self._steps:
            return self
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # The step before is a warm-up, which absorbs the start of the profiler.
        warm_up = min(self._after, 1)
        self._profile = profile(
            activities=activities,
            schedule=schedule(
                skip_first=self._after - warm_up,
                wait=0,
                warmup=warm_up,
                active=self._steps,
                repeat=1,
            )
            if warm_up
            else None,
            on_trace_ready=self._write,
            record_shapes=True,
        )
        self._profile.start()
        return self

    def stepped(self) -> None:
        """Record an optimizer step."""
        if self._profile is None:
            return
        self._done += 1
        if self._done < self._after + self._steps:
            self._profile.step()
        else:
            self._stop()

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, done: profile) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._target.with_name(f".{self._target.name}")
        done.export_chrome_trace(str(unfinished))
        unfinished.replace(self._target)
        self.written = self._target
