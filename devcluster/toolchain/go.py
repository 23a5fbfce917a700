"""The Go command, told everything that must not depend on the user's settings.

The user's module cache, build cache and proxy are used as they are configured.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from devcluster.errors import DevclusterError

Tick = Callable[[], None]

POLL_SECONDS = 0.5
TAIL_LINES = 12

_OVERRIDDEN = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
    "GOWORK": "off",
}
_REMOVED = ("GOOS", "GOARCH", "GOEXPERIMENT", "GOBIN")


def environment() -> dict[str, str]:
    """The environment of every Go command: the same build whatever the user has set."""
    kept = {key: value for key, value in os.environ.items() if key not in _REMOVED}
    return kept | _OVERRIDDEN


def check(folder: Path) -> None:
    """Raises DevclusterError unless there is a Go that can build the module in `folder`."""
    needed = re.search(r"^go (\d+)\.(\d+)", (folder / "go.mod").read_text(), re.MULTILINE)
    if needed is None:
        raise DevclusterError(f"{folder / 'go.mod'} has no go line")
    wanted = f"Go {needed[1]}.{needed[2]} or newer builds the tools"
    if shutil.which("go") is None:
        raise DevclusterError(f"{wanted}, and no go is on PATH: install it from https://go.dev/dl/")
    answer = subprocess.run(
        ["go", "env", "GOVERSION"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    found = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    if found is None:
        raise DevclusterError(f"`go env GOVERSION` failed: {answer.stderr.strip()}")
    if (int(found[1]), int(found[2])) < (int(needed[1]), int(needed[2])):
        raise DevclusterError(
            f"{wanted}, and the go on PATH is {found[0]}: install a newer one from "
            "https://go.dev/dl/, or let Go 1.21 or newer fetch it by GOTOOLCHAIN=auto"
        )


def module_folder(path: str, work: Path, log: Path) -> Path:
    """Downloads a module in the version that `work`/go.mod selects; returns its read-only folder.

    go.sum verifies it. DevclusterError when it cannot be had.
    """
    output = run(["mod", "download", "-json", path], work, log)
    return Path(json.loads(output)["Dir"])


def fetch(packages: Iterable[str], tags: Iterable[str], work: Path, log: Path) -> None:
    """Downloads every module that the packages are built from, and no other."""
    form = "{{with .Error}}{{.}}{{end}}"
    run(["list", *_constraints(tags), "-deps", "-f", form, *packages], work, log)


def build(
    packages: Iterable[str],
    tags: Iterable[str],
    ldflags: str,
    work: Path,
    out: Path,
    log: Path,
    tick: Tick,
) -> None:
    """Builds packages into the folder `out`; `tick` is called all the while.

    What an interrupted build has compiled stays in Go's build cache, so the next one goes on.
    """
    options = ["-v", *_constraints(tags), "-ldflags", ldflags, "-o", f"{out}/"]
    run(["build", *options, *packages], work, log, tick)


def _constraints(tags: Iterable[str]) -> list[str]:
    joined = ",".join(tags)
    return [f"-tags={joined}"] if joined else []


def executable_name(package: str, module: str) -> str:
    """The file name that `go build -o FOLDER/` gives to a package of the module named `module`."""
    if package == ".":
        return module
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def run(arguments: list[str], work: Path, log: Path, tick: Tick = lambda: None) -> str:
    """Runs a Go command; returns its output and adds its messages to `log`.

    DevclusterError with the last lines of the log when it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    answers = log.with_suffix(f".{arguments[0]}.out")
    with log.open("a") as messages, answers.open("w") as answer:
        print("$ go", *arguments, file=messages, flush=True)
        process = subprocess.Popen(
            [*_tied_to_us(), "go", *arguments],
            cwd=work,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=messages,
        )
        try:
            while _running(process):
                tick()
        finally:
            process.terminate()
            process.wait()
    output = answers.read_text()
    answers.unlink()
    if process.returncode:
        tail = "\n".join((log.read_text() + output).splitlines()[-TAIL_LINES:])
        raise DevclusterError(f"`go {' '.join(arguments)}` failed; its log is {log}:\n{tail}")
    return output


def _tied_to_us() -> list[str]:
    """Lets a killed parent take the build along; without setpriv it would compile on for nobody."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False
