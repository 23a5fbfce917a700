"""Comparison with other model servers: `make bench-inference`.

mosec, LitServe, BentoML, MLServer, plain FastAPI and our server serve the same weights. Each is
configured as its documentation recommends and pinned to one core; the load generator runs on
another core. Before the measurement, every response is compared with PyTorch's result. In every
round, each server is measured while the other servers are paused: first in a closed loop of 1, 4,
16 and 64 clients, then in an open loop (a Poisson process) at 50, 80 and 120 percent of the
server's capacity. Latency in the open loop is measured from the scheduled time of a request. The
benchmark also measures a PyTorch loop without a server, JSON instead of bytes, the backends of our
server, and HTTP servers without a model. It writes .bench/inference.json, .bench/inference.md and
.bench/inference-load.svg.
"""

import argparse
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from devcluster.paths import CHECKOUT
from tools.bench.inference import sections
from tools.bench.inference.contestants import CONTESTANTS, versions
from tools.bench.inference.load import Generator, generator
from tools.bench.inference.measure import Bench
from tools.bench.inference.report import draw, inserted, report
from tools.bench.inference.workloads import WORKLOADS
from tools.bench.outcome import DIRECTORY, Goal, conclude, load, print_line

PARTS: Final = ("servers", "json", "backends", "http")
PAGE: Final = CHECKOUT / "docs" / "inference-benchmark.md"
CHART: Final = CHECKOUT / "docs" / "inference-load.svg"


def main() -> None:
    """Measure, print and write the result."""
    options = _options()
    # Handle SIGTERM like Ctrl-C, so that paused servers are terminated.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    program = generator()
    result: dict[str, Any] = {"turns": options.turns, "seconds": options.seconds}
    goals: list[Goal] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-inference-") as directory,
        _pinned_to_core(options.load_core),
    ):
        scratch = Path(directory)
        bench = Bench(
            Generator(program, options.load_core, scratch),
            options.server_core,
            options.turns,
            options.seconds,
        )
        contestants = [CONTESTANTS[name] for name in options.servers]
        workloads = [WORKLOADS[name] for name in options.models]
        try:
            if "servers" in options.parts:
                sections.servers(bench, contestants, workloads, result, goals)
            if "json" in options.parts:
                sections.json(bench, contestants, workloads, result)
            if "backends" in options.parts:
                sections.backends(bench, workloads, result)
            if "http" in options.parts:
                sections.http(bench, result)
        except KeyboardInterrupt:
            print_line("interrupted: writing the partial results, but not to docs/")
            options.docs = False
    result.setdefault("servers", {})
    result.setdefault("bare", {})
    result["versions"] = versions(contestants)
    result["minutes"] = (time.monotonic() - started) / 60
    conclude("inference", result, goals)
    _write(options.docs)
    print_line(f"took {result['minutes']:.1f} minutes")


def _write(docs: bool) -> None:
    result = load("inference")
    text = report(result)
    (DIRECTORY / "inference.md").write_text(text)
    if result["servers"]:
        draw(result, DIRECTORY / "inference-load.svg")
    if docs:
        shown = f"![Latency against load for every server]({CHART.name})\n\n{text}"
        PAGE.write_text(inserted(PAGE.read_text(), shown))
        draw(result, CHART)
        print_line(f"wrote {PAGE.relative_to(CHECKOUT)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = sorted(os.sched_getaffinity(0))
    for option, known in (("servers", CONTESTANTS), ("models", WORKLOADS), ("parts", PARTS)):
        parser.add_argument(
            f"--{option}",
            type=_names(known),
            default=list(known),
            metavar="NAMES",
            help=f"{option} to measure, separated by commas; default: {','.join(known)}",
        )
    parser.add_argument(
        "--turns", type=int, default=2, help="repetitions of each measurement; default: 2"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        help="base duration (s) of a measurement, scaled by a per-model factor; default: 0.5",
    )
    parser.add_argument(
        "--server-core",
        type=int,
        default=cores[0],
        help="CPU core on which the servers run; default: the first core",
    )
    parser.add_argument(
        "--load-core",
        type=int,
        default=cores[-1],
        help="CPU core on which the load generator runs; default: the last core",
    )
    parser.add_argument(
        "--docs", action="store_true", help=f"also write docs/{PAGE.name} and docs/{CHART.name}"
    )
    options = parser.parse_args()
    if options.server_core == options.load_core:
        parser.error(
            "--server-core and --load-core must differ: the servers and the load generator need "
            "separate cores"
        )
    return options


def _names(known: Any) -> Any:
    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return given

    return names


@contextlib.contextmanager
def _pinned_to_core(core: int) -> Any:
    """Pin this process to a core that the servers do not use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    main()
