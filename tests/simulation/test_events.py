"""The log of cluster start events, read while it is being written."""

from pathlib import Path

from simulation.supervisor import EventLog


def test_events_are_read_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "API server is ready")
    log.add("gpu-node-0", "node is Ready", ready=True)
    log.add("gpu-node-1", "failed", error="no such image: été")
    first, second, third = log.read()
    assert (first.node, first.step, first.ready) == ("gpu-node-0", "API server is ready", False)
    assert second.ready
    assert third.error == "no such image: été"
    assert first.time <= second.time <= third.time


def test_a_missing_log_has_no_events(tmp_path: Path) -> None:
    assert list(EventLog(tmp_path / "events").read()) == []


def test_incomplete_lines_are_skipped_until_they_are_complete(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "whole")
    lines = log.path.read_text()
    log.path.write_text(lines + lines[:-10])
    assert [event.step for event in log.read()] == ["whole"]
    log.path.write_text(lines + lines)
    assert len(list(log.read())) == 2


def test_error_with_several_lines_is_one_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "failed", error="first\nsecond")
    (event,) = log.read()
    assert event.error == "first\nsecond"
