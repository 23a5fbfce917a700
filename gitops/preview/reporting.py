"""Makes the report of a preview that runs, and writes it."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from gitops import prices, secrets
from gitops.engine import Ended, Preview, Stack
from gitops.files import write_text
from gitops.preview import events, markdown
from gitops.preview.report import Mode, Report, Status, build
from gitops.preview.values import Mask


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command was asked for; without `out` the comment goes to stdout."""

    stack: str
    mode: Mode
    base: str | None
    prices: Path | None
    out: Path | None
    pack: Path
    """What the engine was given as the pack: a folder that has another name each time."""


class _Progress:
    """Says how far a preview is: in one line at a terminal, else every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._calls = 0

    def __call__(self, resources: int) -> None:
        """Takes the number of resources that were looked at."""
        self._calls += 1
        if self._stream.isatty():
            self._stream.write(f"\r{resources} resources…")
        elif self._calls % 10 == 0:
            self._stream.write(f"{resources} resources…\n")
        self._stream.flush()


def report(asked: Asked, stack: Stack, engine: Preview) -> Status:
    """Waits for the preview, writes comment.md and report.json, and says what came of it."""
    table = prices.load(asked.prices or prices.DEFAULT)
    # A rendered stack has stand-ins only.
    hide = Mask([] if asked.mode == "rendered" else secrets.values(stack))
    plan = _plan(engine.log, engine.wait(_Progress(sys.stderr)), hide)
    built = build(
        replace(plan, errors=tuple(e.replace(str(asked.pack), "policies") for e in plan.errors)),
        stack=asked.stack,
        prices=table,
        mode=asked.mode,
        base=asked.base,
    )
    _write(asked.out, built)
    return built.status


def _write(out: Path | None, built: Report) -> None:
    comment = markdown.render(built)
    if out is None:
        sys.stdout.write(comment)
        return
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "comment.md", comment)
    write_text(out / "report.json", built.model_dump_json(by_alias=True, indent=2) + "\n")


def _plan(log: Path, ended: Ended, hide: Mask) -> events.Plan:
    said = (hide(ended.said.strip()),)
    if not log.exists():
        # The CLI ended before the engine began: no such stack, no login, no passphrase.
        return events.Plan(steps=(), errors=said, succeeded=False, complete=False)
    found = events.plan(events.read(log), hide)
    if found.succeeded or found.errors or found.findings:
        return found
    return events.Plan(found.steps, errors=said, succeeded=False, complete=False)
