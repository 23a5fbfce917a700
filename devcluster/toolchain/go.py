"""Wrapper around the `go` command that ignores user settings that affect builds.

The `Go` class also replaces the user's module and build caches with separate ones.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from devcluster import DevclusterError

Tick = Callable[[], None]

POLL_SECONDS = 0.5
DOWNLOAD_ATTEMPTS = 3
RETRY_SECONDS = 2.0
"""Time (s) between two download attempts. Go itself does not retry downloads."""
GIB = 2**30

_OVERRIDDEN = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=readonly -modcacherw -trimpath -buildvcs=false",
    "GOWORK": "off",
}
_UNSET_VARIABLES = ("GOOS", "GOARCH", "GOEXPERIMENT", "GOBIN")


@dataclass(frozen=True)
class Package:
    """A package to compile, and the size of its sources in bytes."""

    path: str
    size: int


def environment() -> dict[str, str]:
    """Return the environment for Go commands that use the user's module and build caches."""
    user = {key: value for key, value in os.environ.items() if key not in _UNSET_VARIABLES}
    return user | _OVERRIDDEN | compiler_memory(psutil.virtual_memory().total, os.cpu_count() or 1)


def compiler_memory(total: int, processors: int) -> dict[str, str]:
    """Return garbage collector settings for compilers on a machine with `total` bytes of memory.

    Go runs one compiler per processor, and a third of the compile time is garbage collection.
    Together, the compilers may use a quarter of the memory before they collect garbage.
    """
    each = total // (4 * processors)
    if each < GIB:
        return {}
    return {"GOGC": "off", "GOMEMLIMIT": f"{min(each, 4 * GIB) // 2**20}MiB"}


class Go:
    """Go commands with a module cache and a build cache below one directory."""

    def __init__(self, caches: Path, *, cgo: bool = False) -> None:
        self.caches = caches
        self._cgo = cgo

    def with_cgo(self, cgo: bool) -> "Go":
        """Return an instance with cgo enabled or disabled, which uses the same caches."""
        return Go(self.caches, cgo=cgo)

    @property
    def environment(self) -> dict[str, str]:
        """Environment for Go commands that use this object's caches."""
        caches = {"GOMODCACHE": str(self.caches / "mod"), "GOCACHE": str(self.caches / "build")}
        return environment() | caches | {"CGO_ENABLED": str(int(self._cgo))}

    def remove_caches(self) -> None:
        """Delete both caches, unless `KEEP_GO_CACHE=1` is set.

        A separate process deletes them, because deleting so many files can take minutes.
        """
        if os.environ.get("KEEP_GO_CACHE") == "1" or not self.caches.exists():
            return
        # Each removal uses a separate directory, because an earlier removal may still be running.
        self.caches.rename(tempfile.mkdtemp(prefix=self._removed, dir=self.caches.parent))
        self.resume_removal()

    def resume_removal(self) -> None:
        """Delete leftovers of an earlier removal in the background."""
        if removed := sorted(self.caches.parent.glob(f"{self._removed}*")):
            program = "import shutil, sys\nfor each in sys.argv[1:]: shutil.rmtree(each, True)"
            # Do not inherit the standard streams: the reader of a pipe would wait for the process.
            silent = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_RDWR, 0) for file in range(3)]
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-c", program, *map(str, removed)],
                os.environ,
                setsid=True,
                file_actions=silent,
            )

    @property
    def _removed(self) -> str:
        """Prefix of the names of directories that are being deleted."""
        return f"{self.caches.name}.removed"

    def remove_archives(self) -> None:
        """Delete the module archives, which are already extracted, but keep the checksums."""
        for archive in (self.caches / "mod" / "cache" / "download").rglob("*.zip"):
            archive.unlink()

    def check(self, directory: Path) -> None:
        """Raise DevclusterError unless the installed Go can build the module in `directory`."""
        needed = re.search(r"^go (\d+)\.(\d+)", (directory / "go.mod").read_text(), re.MULTILINE)
        if needed is None:
            raise DevclusterError(f"{directory / 'go.mod'} has no go line")
        requirement = f"the tools need Go {needed[1]}.{needed[2]} or newer"
        if shutil.which("go") is None:
            raise DevclusterError(
                f"{requirement}, but `go` is not on the PATH: install it from https://go.dev/dl/"
            )
        result = subprocess.run(
            ["go", "env", "GOVERSION"],
            cwd=directory,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        match = re.search(r"go(\d+)\.(\d+)", result.stdout)
        if match is None:
            raise DevclusterError(f"`go env GOVERSION` failed: {result.stderr.strip()}")
        if (int(match[1]), int(match[2])) < (int(needed[1]), int(needed[2])):
            raise DevclusterError(
                f"{requirement}, but {match[0]} is on the PATH: install a newer version from "
                "https://go.dev/dl/, or let Go 1.21 or newer download it with GOTOOLCHAIN=auto"
            )

    def module_directory(self, path: str, work: Path, log: Path) -> Path:
        """Download the version of a module that `work`/go.mod selects; return its directory.

        The module is verified against go.sum. Raise DevclusterError if it is not available.
        """
        output = self._download(["mod", "download", "-json", path], work, log)
        return Path(json.loads(output)["Dir"])

    def replace_module(self, path: str, directory: str, work: Path, log: Path) -> None:
        """Replace a module in `work`/go.mod with a directory below `work`."""
        self._run(["mod", "edit", f"-replace={path}=./{directory}"], work, log)

    def stale_packages(
        self, packages: Sequence[str], flags: Sequence[str], work: Path, log: Path, tick: Tick
    ) -> list[Package]:
        """Download the dependencies of packages; return the packages that are not compiled yet.

        Raise DevclusterError if a module is missing or its checksum is wrong.
        """
        fields = "-json=ImportPath,Dir,GoFiles,Stale"
        try:
            command = ["list", *flags, "-deps", fields, *packages]
            output = self._download(command, work, log, tick)
        except _CommandError as error:
            raise DevclusterError(f"{self._cache_damage(work)}{error}") from error
        return [
            Package(package["ImportPath"], _size(Path(package["Dir"]), package.get("GoFiles", [])))
            for package in _objects(output)
            if package.get("Stale") and "Dir" in package
        ]

    def build(
        self,
        packages: Sequence[str],
        flags: Sequence[str],
        work: Path,
        out: Path,
        log: Path,
        tick: Callable[[Path], None],
    ) -> None:
        """Build packages into the `out` directory.

        While Go runs, `tick` is called repeatedly with the file to which Go appends one event per
        line (`go help buildjson`). An interrupted build resumes from the build cache.

        Raise DevclusterError with the compiler's message if a package does not compile.
        """
        events = log.with_suffix(".events")
        options = ["-v", "-json", *flags, "-o", f"{out}/"]
        try:
            self._run(["build", *options, *packages], work, log, lambda: tick(events), events)
        except _CommandError as error:
            messages = compiler_messages(events)
            raise DevclusterError(
                f"{self._cache_damage(work)}{messages or error.messages}\n"
                f"`go build` of {work.name} failed; see the log at {log}"
            ) from error

    def _download(
        self, arguments: list[str], work: Path, log: Path, tick: Tick = lambda: None
    ) -> str:
        """Run a Go command that downloads modules, with retries; return its output."""
        attempts = Retrying(
            retry=retry_if_exception_type(_CommandError),
            stop=stop_after_attempt(DOWNLOAD_ATTEMPTS),
            wait=wait_fixed(RETRY_SECONDS),
            reraise=True,
        )
        return attempts(self._run, arguments, work, log, tick)

    def _cache_damage(self, work: Path) -> str:
        """Return a message if the module cache is damaged, otherwise an empty string."""
        done = subprocess.run(
            ["go", "mod", "verify"], cwd=work, env=self.environment, capture_output=True, text=True
        )
        if done.returncode == 0:
            return ""
        output = (done.stdout + done.stderr).strip()
        directory = self.caches / "mod"
        return (
            f"the module cache is damaged; remove it with `rm -rf {directory}` and rerun the "
            f"command:\n{output}\n"
        )

    def _run(
        self,
        arguments: list[str],
        work: Path,
        log: Path,
        tick: Tick = lambda: None,
        output_file: Path | None = None,
    ) -> str:
        """Run a Go command; return its output and append its messages to `log`.

        The temporary directory is deleted, because a terminated `go build` leaves it behind.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.caches / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # left behind by a killed process
        temporary.mkdir(parents=True)
        output_file = output_file or log.with_suffix(f".{arguments[0]}.out")
        with log.open("a") as messages, output_file.open("w") as output:
            print("$ go", *arguments, file=messages, flush=True)
            begin = messages.tell()
            process = subprocess.Popen(
                [*kill_with_parent(), "go", *arguments],
                cwd=work,
                env=self.environment | {"GOTMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
            )
            try:
                while _is_running(process):
                    tick()
            finally:
                process.terminate()
                process.wait()
                shutil.rmtree(temporary, ignore_errors=True)
        if process.returncode:
            with log.open() as lines:
                lines.seek(begin)
                printed = lines.read()
            if arguments[:2] == ["mod", "download"]:
                printed += _download_error(output_file)
            raise _CommandError(arguments, log, printed)
        return output_file.read_text()


class _CommandError(DevclusterError):
    """A failed Go command, with its output."""

    def __init__(self, arguments: Sequence[str], log: Path, output: str) -> None:
        lines = [line for line in output.splitlines() if not line.startswith("go: downloading ")]
        self.messages = "\n".join(lines)
        super().__init__(
            f"{self.messages}\n`go {' '.join(arguments)}` failed; see the log at {log}"
        )


def _download_error(output_file: Path) -> str:
    """Return the error that `go mod download -json` printed as part of its output."""
    return "\n".join(
        reply["Error"] for reply in _objects(output_file.read_text()) if "Error" in reply
    )


def compiler_messages(events: Path) -> str:
    """Return the compiler's output for the packages that failed."""
    found = list(_events(events))
    failed = {event["ImportPath"] for event in found if event["Action"] == "build-fail"}
    lines = [
        event["Output"]
        for event in found
        if event["Action"] == "build-output"
        and event["ImportPath"] in failed
        and event["Output"] != f"{event['ImportPath']}\n"
    ]
    return "".join(lines).rstrip()


def started_packages(events: Path) -> Iterable[str]:
    """Yield the packages whose compilation has started, in order."""
    for event in _events(events):
        if event.get("Output") == f"{event.get('ImportPath')}\n":
            yield event["ImportPath"]


def executable_name(package: str, module: str) -> str:
    """Return the file name of the executable that `go build -o DIRECTORY/` builds for a package."""
    if package == ".":
        return module
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def _events(file: Path) -> Iterable[dict[str, Any]]:
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the last line is incomplete
            return


def _objects(text: str) -> Iterable[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        yield value


def _size(directory: Path, files: Sequence[str]) -> int:
    return sum((directory / name).stat().st_size for name in files)


def kill_with_parent() -> list[str]:
    """Return a command prefix that stops a build when its parent exits; empty without setpriv."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False
