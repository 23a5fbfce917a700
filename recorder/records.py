"""Files of failures, bounded in size and number, and written atomically.

    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.log    last lines
    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.json   exit code, events

A directory is one failure. If a gang fails together, it contains the pods that ended first.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from recorder.pods import Ending

FOLDER: Final = "failures"
TOGETHER: Final = timedelta(minutes=10)
"""Containers that end within this time of a failure belong to it."""

RESERVE: Final = 64 * 2**20
"""Bytes of a claim that stay free for checkpoints."""

_STAMP: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Bounds:
    """Limits: lines and bytes per container, failures per run, pods per failure."""

    lines: int = 500
    size: int = 64 * 1024
    failures: int = 10
    pods: int = 16


def write(
    run_dir: Path,
    ending: Ending,
    lines: Sequence[str],
    facts: Mapping[str, Any],
    bounds: Bounds,
) -> Path | None:
    """Write one record and remove the oldest failures beyond the limit.

    Returns its JSON file, or None if the record exists or its failure has enough pods. Raises
    OSError if the claim is full or cannot be written.
    """
    attempt = ending.attempt
    name = f"{attempt.pod}.{attempt.container}.{attempt.restarts}.json"
    # A re-created pod has the same name.
    same = (json.loads(path.read_text()) for path in (run_dir / FOLDER).glob(f"*/{name}"))
    folder = _folder(run_dir / FOLDER, ending)
    if any(record["uid"] == attempt.uid for record in same):
        return None
    if len(list(folder.glob("*.json"))) >= bounds.pods:
        return None
    path = folder / name
    if shutil.disk_usage(_existing(run_dir)).free < RESERVE:
        raise OSError(
            f"{run_dir} has less than {RESERVE // 2**20} MiB free, which is reserved for "
            "checkpoints"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # In this order: a JSON file implies its log file.
    _write_atomically(path.with_suffix(".log"), "".join(f"{line}\n" for line in lines))
    _write_atomically(path, json.dumps(_as_json(ending) | dict(facts), indent=2) + "\n")
    for old in _failures(run_dir)[: -bounds.failures]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def newest(claims: Path, run: str) -> Path | None:
    """Return the directory of a run's last failure."""
    found = [folder for claim in claims.iterdir() for folder in _failures(claim / run)]
    return max(found, key=lambda folder: folder.name, default=None)


def shown(folder: Path) -> Iterator[str]:
    """Yield a failure as readable text, with pods in the order in which they ended."""
    records = [(json.loads(path.read_text()), path) for path in folder.glob("*.json")]
    for record, path in sorted(records, key=lambda each: str(each[0]["finished"])):
        code = record["exitCode"]
        outcome = record["reason"] if code is None else f"{record['reason']}, exit code {code}"
        yield f"--- {record['pod']}/{record['container']}, {record['finished']}: {outcome}\n"
        if record["message"]:
            yield f"{record['message'].rstrip()}\n"
        for event in record["events"]:
            text = f"{event['type']} {event['reason']}: {event['message']}"
            yield f"{event['last']} {event['object']} {text}\n"
        yield path.with_suffix(".log").read_text(errors="replace")


def _folder(failures: Path, ending: Ending) -> Path:
    """Return the directory of the last failure if the container ran then, else a new one."""
    end = (ending.finished or datetime.now(UTC)).astimezone(UTC)
    start = (ending.started or end).astimezone(UTC)
    for folder in reversed(_failures(failures.parent)):
        first = datetime.strptime(folder.name, _STAMP).replace(tzinfo=UTC)
        # Directory names have full seconds, and the first container observed may not end first.
        if start <= first + timedelta(seconds=1) and abs(end - first) <= TOGETHER:
            return folder
    return failures / end.strftime(_STAMP)


def _failures(run_dir: Path) -> list[Path]:
    found = []
    for folder in (run_dir / FOLDER).glob("*T*Z"):
        try:
            datetime.strptime(folder.name, _STAMP)
        except ValueError:
            continue  # not written by the recorder
        found.append(folder)
    return sorted(found)


def _as_json(ending: Ending) -> dict[str, Any]:
    return {
        "pod": ending.attempt.pod,
        "uid": ending.attempt.uid,
        "container": ending.attempt.container,
        "restarts": ending.attempt.restarts,
        "started": _text(ending.started),
        "finished": _text(ending.finished),
        "exitCode": ending.exit_code,
        "signal": ending.signal,
        "reason": ending.reason,
        "message": ending.message,
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _write_atomically(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        with unfinished.open("w", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
