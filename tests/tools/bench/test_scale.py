"""Assumptions of the scale benchmark: complete gangs, full nodes, goals that can be missed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kube.names import RUN_LABEL
from simulation.nodes import GPUS
from tools.bench.processes import ResourceUsage, measured, measured_together
from tools.bench.scale_cluster import NAMESPACE, PODS, gangs, plain_pods, settings_of
from tools.bench.scale_placement import VOLCANO, Gangs, PodWatch, placement_goals
from tools.bench.scale_updates import KUBECTL, ONE_STACK, PULUMI, update_goals


def bound(*bindings: tuple[str, float]) -> Gangs:
    """Gangs of two pods, with observed bindings."""
    seen = Gangs(2)
    for number, (gang, timestamp) in enumerate(bindings):
        seen.record(gang, f"pod-{number}", "node", timestamp)
    return seen


def test_pod_counts_as_bound_when_it_is_first_seen_with_a_node() -> None:
    seen = Gangs(2)
    seen.record("a", "a-0", None, 1.0)
    seen.record("a", "a-0", "node-0", 2.0)
    seen.record("a", "a-0", "node-0", 2.5)
    seen.record("a", "a-1", "node-1", 3.25)
    assert seen.count == 2
    assert seen.binding_seconds() == [1.25]


def test_interleaved_bindings_of_gangs_are_not_partial() -> None:
    assert (
        bound(("a", 1.0), ("b", 1.5), ("b", 2.0), ("a", 2.5)).partial_gangs(min_pause=1.0) == set()
    )


def test_a_gang_that_stays_incomplete_is_partial() -> None:
    assert bound(("b", 0.5), ("b", 1.0), ("a", 1.0), ("a", 2.5)).partial_gangs(min_pause=1.0) == {
        "a"
    }


def test_a_gang_that_is_incomplete_at_the_end_is_partial() -> None:
    assert bound(("a", 1.0), ("b", 1.1), ("b", 1.2)).partial_gangs(min_pause=1.0) == {"a"}


def test_rates_are_measured_from_the_submission() -> None:
    seen = bound(("a", 12.0), ("a", 13.0), ("b", 14.0), ("b", 15.0))
    found = seen.summary(began=10.0, submitted=11.0, min_pause=0.5)
    assert found["pods"] == found["eventsObserved"] == 4
    assert found["podsPerSecond"] == 0.8
    assert found["secondsToSubmit"] == 1.0
    assert found["partialGangs"] == 2
    assert seen.summary(began=10.0, submitted=11.0, min_pause=1.0)["partialGangs"] == 0


def test_plain_pods_equal_gang_pods_without_the_gang() -> None:
    (job,) = gangs(settings_of(1, 4))
    pods = plain_pods(job)
    assert len({pod["metadata"]["name"] for pod in pods}) == 4
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(GPUS)
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert pod["metadata"]["labels"][RUN_LABEL] == job["metadata"]["name"]
        assert pod["metadata"]["namespace"] == NAMESPACE
    template = job["spec"]["tasks"][0]["template"]["spec"]
    assert pods[0]["spec"] == {**template, "schedulerName": "default-scheduler"}


def test_every_job_is_a_separate_run() -> None:
    assert len({job["metadata"]["name"] for job in gangs(settings_of(20, 2))}) == 20


def kubectl(folder: Path, *streams: list[dict[str, Any]]) -> list[str]:
    """A fake kubectl whose watches disconnect after some events, except the last one."""
    for number, events in enumerate(streams):
        lines = "".join(f"{json.dumps(event)}\n" for event in events)
        (folder / f"stream-{number}").write_text(lines)
    program = folder / "kubectl.py"
    program.write_text(
        f"""
import sys, time
from pathlib import Path
folder = Path({str(folder)!r})
requested_path = sys.argv[-1]
if "watch=1" not in requested_path:
    print('{{"metadata": {{"resourceVersion": "7"}}}}')
    sys.exit()
with (folder / "versions").open("a") as file:
    print(requested_path.partition("resourceVersion=")[2], file=file)
number = len((folder / "versions").read_text().split()) - 1
print((folder / f"stream-{{number}}").read_text(), end="", flush=True)
if number == {len(streams) - 1}:
    (folder / "last").touch()
    time.sleep(60)
"""
    )
    return [sys.executable, str(program)]


def event(what: str, version: int, node: str | None = None) -> dict[str, Any]:
    metadata = {"name": f"pod-{version}", "labels": {RUN_LABEL: "gang"}}
    spec = {"nodeName": node} if node else {}
    return {
        "type": what,
        "object": {"metadata": {**metadata, "resourceVersion": str(version)}, "spec": spec},
    }


def test_a_disconnected_watch_continues_from_its_last_version(tmp_path: Path) -> None:
    seen = Gangs(2)
    first = [event("ADDED", 8), event("MODIFIED", 9, "node-0"), event("BOOKMARK", 12)]
    watch = PodWatch(kubectl(tmp_path, first, [event("ADDED", 13, "node-1")]), PODS, seen)
    while seen.count < 2:
        assert watch.problem is None
    watch.stop()
    assert (tmp_path / "versions").read_text().split() == ["7", "12"]
    assert watch.streams == 2
    assert seen.events == 3


def test_a_failed_watch_reports_its_reason(tmp_path: Path) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    watch = PodWatch(kubectl(tmp_path, [gone]), PODS, Gangs(2))
    while watch.problem is None:
        assert watch.streams <= 1
    watch.stop()
    assert "too old resource version" in watch.problem


def test_usage_of_child_processes_is_included(tmp_path: Path) -> None:
    holds = "import sys, time; held = bytearray(64 * 2**20); time.sleep(0.5)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holds!r}])"
    used = measured([sys.executable, "-c", starts], tmp_path, {})
    assert used.peak_mib > 64
    assert used.seconds > 0.5
    assert used.cpu_seconds > 0


def test_a_failed_command_ends_the_benchmark_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such stack"):
        measured([sys.executable, "-c", "raise SystemExit('no such stack')"], tmp_path, {})


@pytest.mark.parametrize(("rate", "partial", "met"), [(60.0, 0, True), (59.9, 1, False)])
def test_goals_are_compared_with_the_slowest_round(rate: float, partial: int, met: bool) -> None:
    good = {"podsPerSecond": 90.0, "partialGangs": 0}
    rounds = [good, {"podsPerSecond": rate, "partialGangs": partial}]
    goals = placement_goals({"rounds": {VOLCANO: rounds}})
    assert [goal.met for goal in goals] == [met, met]


def used(seconds: float) -> dict[str, float]:
    return vars(ResourceUsage(seconds, seconds, 100.0))


@pytest.mark.parametrize(("hundred", "thousand", "met"), [(9.0, 180.0, True), (9.1, 183.0, False)])
def test_update_times_are_compared_with_kubectl_and_with_fewer_jobs(
    hundred: float, thousand: float, met: bool
) -> None:
    samples = {
        100: {KUBECTL: [used(3.0)], PULUMI: [used(hundred)], ONE_STACK: [used(hundred)]},
        1000: {KUBECTL: [used(30.0)], PULUMI: [used(thousand)]},
    }
    goals = update_goals({"samples": samples})
    assert [goal.met for goal in goals] == [met, met, met]
    assert len({goal.name for goal in goals}) == 3


WAIT_FOR_OTHERS = """
import os, sys, time
from pathlib import Path
held = bytearray(64 * 2**20)
Path(str(os.getpid())).touch()
while len(list(Path().iterdir())) < int(sys.argv[1]):
    time.sleep(0.01)
time.sleep(0.5)
"""


def test_concurrent_commands_are_measured_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAIT_FOR_OTHERS, "3"]
    used = measured_together([command, command, command], tmp_path, {}, concurrent=3)
    assert used.peak_mib > 3 * 64


def test_memory_of_sequential_commands_is_not_added_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAIT_FOR_OTHERS, "1"]
    used = measured_together([command, command], tmp_path, {}, concurrent=1)
    assert 64 < used.peak_mib < 2 * 64


def test_error_names_the_command_that_failed(tmp_path: Path) -> None:
    fine, wrong = [sys.executable, "-c", ""], [sys.executable, "-c", "raise SystemExit('no stack')"]
    with pytest.raises(SystemExit, match="no stack"):
        measured_together([fine, wrong, fine], tmp_path, {}, concurrent=2)


def test_goals_without_a_measurement_are_omitted() -> None:
    assert update_goals({"samples": {10: {KUBECTL: [used(1.0)], PULUMI: [used(4.0)]}}}) == []
