import pytest

from devcluster.toolchain.builder import (
    COMPILED_PER_SECOND,
    LINK_COST,
    Meter,
    announcement,
    duration,
)
from devcluster.toolchain.go import compiler_memory

GIB = 2**30


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, in seconds, on a machine with two processors."""
    now = [0.0]
    monkeypatch.setattr("devcluster.toolchain.builder.time.monotonic", lambda: now[0])
    monkeypatch.setattr("devcluster.toolchain.builder.os.cpu_count", lambda: 2)
    return now


def test_remaining_time_is_estimated_before_the_first_compilation(seconds: list[float]) -> None:
    meter = Meter(lambda line: None, {"a": 60 * COMPILED_PER_SECOND}, ["tool"])
    assert meter.remaining_seconds() == (60 * COMPILED_PER_SECOND + LINK_COST) / (
        2 * COMPILED_PER_SECOND
    )


def test_remaining_time_follows_the_measured_pace(seconds: list[float]) -> None:
    sizes = {"a": 600 * COMPILED_PER_SECOND, "b": 600 * COMPILED_PER_SECOND}
    meter = Meter(lambda line: None, sizes, [])
    seconds[0] = 6000.0  # a twentieth of the expected pace
    meter.compiled(["a"])
    assert meter.remaining_seconds() > 4000


def test_progress_line_shows_packages_and_times(seconds: list[float]) -> None:
    lines: list[str] = []
    meter = Meter(lines.append, {"x.example/a": 1000, "x.example/b": 1000}, ["tool"])
    seconds[0] = 187.0
    meter.compiled(["x.example/a", "elsewhere.example/c"], "x.example/a")
    assert lines == ["1 of 2 packages, x.example/a, 3:07, about 20 s left"]


def test_no_time_remains_when_everything_is_linked(seconds: list[float]) -> None:
    meter = Meter(lambda line: None, {"a": 1000}, ["tool"])
    meter.compiled(["a"])
    meter.linked(["tool"])
    assert meter.remaining_seconds() == 0


def test_announcement_lists_new_tools_time_and_installed_tools(seconds: list[float]) -> None:
    line = announcement(["pulumi", "etcd"], ["kubectl"], cpu_minutes=20)
    assert line == (
        "building pulumi, etcd from Go modules, about 11 min; already installed: kubectl"
    )


@pytest.mark.parametrize(
    ("passed", "text"), [(3, "10 s"), (44, "40 s"), (89, "90 s"), (91, "2 min"), (700, "12 min")]
)
def test_durations_are_rounded(passed: float, text: str) -> None:
    assert duration(passed) == text


def test_garbage_collection_of_compilers_is_off_with_enough_memory() -> None:
    assert compiler_memory(24 * GIB, 2) == {"GOGC": "off", "GOMEMLIMIT": "3072MiB"}
    assert compiler_memory(256 * GIB, 2) == {"GOGC": "off", "GOMEMLIMIT": "4096MiB"}


def test_compilers_keep_their_defaults_on_a_small_machine() -> None:
    assert compiler_memory(4 * GIB, 2) == {}
