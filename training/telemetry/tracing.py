"""Profiles of selected steps: a Chrome trace per process, for Perfetto or TensorBoard."""

from pathlib import Path
from typing import Self

from torch.profiler import profile, schedule


class Tracer:
    """Profiles `steps` steps after the first `after` steps of this process; 0 disables it.

    `before` is the number of steps of the run before this process started. After the last profiled
    step, or at exit, the trace is written to `folder`/rank-<rank>-step-<first>.json.gz, and
    `written` is set to its path. Raises OSError if it cannot be written.
    """

    written: Path | None = None
    _profile: profile | None = None

    def __init__(self, folder: Path, rank: int, steps: int, after: int, before: int) -> None:
        self._target = folder / f"rank-{rank}-step-{before + after + 1:08d}.json.gz"
        self._left = after + steps
        if steps:
            # The step before is a warm-up, which absorbs the start of the profiler.
            skipped = {"skip_first": after - 1, "wait": 0, "warmup": 1}
            plan = schedule(**skipped, active=steps, repeat=1) if after else None
            self._profile = profile(schedule=plan, on_trace_ready=self._write, record_shapes=True)

    def __enter__(self) -> Self:
        if self._profile is not None:
            self._profile.start()
        return self

    def stepped(self) -> None:
        """Record an optimizer step."""
        self._left -= 1
        if self._left <= 0:
            self.__exit__()
        elif self._profile is not None:
            self._profile.step()

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, done: profile) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._target.with_name(f".{self._target.name}")
        done.export_chrome_trace(str(unfinished))
        unfinished.replace(self._target)
        self.written = self._target
