"""From data to production on real nodes: each change to the stack is a pull request.

docs/data-to-production.md shows the settings of the pull requests, which this test reads there.
"""

import base64
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from infra.settings.training.sweep import template_name
from kube.names import ROLLED_BACK_ANNOTATION, SWEEP_SUMMARY_ANNOTATION
from recorder.rollback import FIELD_MANAGER
from tests.cluster.load import Background, Load, inference_request
from tests.cluster.platform import ROOT, UPDATE, Platform, await_
from tests.operators import gateway, prometheus
from tests.operators.pull_requests import POLICIES, Change, Repository, changes, remove_jobs
from training.data import held_out_digits
from workload.manifest import Manifest, read_manifest

SECONDS = 2.0
COLORS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b")
FAILED = "#d62728"
INTERVAL = 2
TRIALS = 24
CLIENTS, PAUSE = 4, 0.1
SHAPE = (3, 32, 32)
SHARE, TOLERANCE, SAMPLE = 0.20, 0.08, 400
BATCH = 30
STACK, DATA, SEARCH, WINNER, CANARY, PROMOTION, CANDIDATES, WORSE, BAD = changes()
RESULTS = ROOT / ".bench" / "data-to-production"


@dataclass(frozen=True)
class Sample:
    """The weight of the canary, and the number of responses so far."""

    seconds: float
    weight: int
    versions: dict[str, int]
    failed: int


@dataclass
class Traffic(Background):
    """Samples of the route and the load, and the changes to the stack."""

    platform: Platform
    load: Load
    samples: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()

    def mark(self, text: str) -> None:
        """Add a label at the current time."""
        self.marks.append((time.monotonic() - self._begun, text))

    def _work(self) -> None:
        while not self._ending.wait(SECONDS):
            # The API server may be briefly unavailable.
            with contextlib.suppress(AssertionError):
                weight = weights(self.platform).get("digits-canary", 0)
                seen = self.load.seen()
                failed = sum(seen.failed.values())
                now = time.monotonic() - self._begun
                self.samples.append(Sample(now, weight, dict(seen.versions), failed))

    def save(self, path: Path) -> None:
        found = {"samples": [asdict(each) for each in self.samples], "marks": self.marks}
        path.write_text(json.dumps(found))


def weights(platform: Platform) -> dict[str, int]:
    """Return the weights of the route by service."""
    route = platform.kubectl("get", "httproute", "digits", "-n", "ml-dev")
    (rule,) = route["spec"]["rules"]
    return {each["name"]: each["weight"] for each in rule["backendRefs"]}


def draw(traffic: Traffic, names: dict[str, str], path: Path) -> None:
    """Plot the canary's weight above each version's response rate; `names` labels the versions."""
    mpl.rcParams["svg.hashsalt"] = "traffic"  # makes the file reproducible
    figure = Figure(figsize=(9, 5), layout="constrained")
    weight, answers = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    samples = traffic.samples
    at = [each.seconds for each in samples]
    weight.step(at, [each.weight for each in samples], where="post", color="black", lw=1.2)
    weight.set_ylabel("weight of the canary, %", fontsize="small")
    weight.set_ylim(0, 50)
    answered = [version for version in names if samples[-1].versions.get(version)]
    for version, color in zip(answered, COLORS, strict=False):
        counts = [each.versions.get(version, 0) for each in samples]
        answers.plot(at[1:], _rates(at, counts), color=color, lw=1.2, label=names[version])
    failed = _rates(at, [each.failed for each in samples])
    answers.plot(at[1:], failed, color=FAILED, lw=1.2, label="failed")
    answers.set_ylabel("responses per second", fontsize="small")
    answers.set_xlabel("seconds", fontsize="small")
    answers.set_ylim(0, answers.get_ylim()[1] * 1.15)
    answers.legend(fontsize="small", frameon=False, ncols=len(answered) + 1, loc="upper left")
    for seconds, text in traffic.marks:
        for axes in (weight, answers):
            axes.axvline(seconds, color="black", lw=0.5, ls=":")
        weight.annotate(text, (seconds, 49), rotation=90, ha="right", va="top", fontsize="x-small")
    for axes in (weight, answers):
        axes.grid(True, axis="y", lw=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _rates(at: Sequence[float], counts: Sequence[int]) -> list[float]:
    pairs = zip(at, at[1:], counts, counts[1:], strict=False)
    return [(after - before) / (now - then) for then, now, before, after in pairs]


@dataclass
class Team:
    """A stack, the repository that describes it, and the address of its service."""

    platform: Platform
    checkpoints: Path
    repository: Repository
    url: str
    runs: dict[str, str] = field(default_factory=dict)
    """Names of runs by key of their jobs."""

    @property
    def infer(self) -> str:
        return f"{self.url}/v2/models/digits/infer"

    def change(self, title: str) -> Change:
        return changes(self.runs)[title]

    def merge(self, title: str, status: int = 0) -> tuple[str, str]:
        """Merge a pull request and update the stack; return the comment and the output."""
        comment = self.repository.merge(title, self.change(title))
        return comment, self.repository.update(status)

    def wait_for_export(self, key: str) -> Manifest:
        """Wait until the current run of a job has succeeded, and return its manifest."""
        self.runs[key] = self.platform.run_name(key)
        self.wait_for_state(key, "succeeded")
        return self.manifest(key)

    def wait_for_state(self, key: str, state: str) -> None:
        await_(lambda: self.states()[self.runs[key]] == state, f"{key}: {state}")

    def states(self) -> dict[str, str]:
        """Return the states of the runs by name, as users see them."""
        text = self.platform.shell("python -m gitops status --json || true")
        return {run["name"]: run["state"] for run in json.loads(text)["runs"]}

    def manifest(self, key: str) -> Manifest:
        return read_manifest(self.checkpoints / self.runs[key] / "export")

    def version(self, key: str) -> str:
        """Return the short name of the weights of a run."""
        return str(self.manifest(key).weights.sha256)[:12]

    def accuracy(self) -> float:
        """Return the fraction of the held-out digits that the service classifies correctly."""
        images, labels = held_out_digits(SHAPE)
        found: list[int] = []
        for start in range(0, len(images), BATCH):
            document = inference_request(SHAPE, slice(start, start + BATCH))
            answer = httpx.post(self.infer, json=document, timeout=60, trust_env=False)
            assert answer.is_success, answer.text
            found += answer.json()["outputs"][0]["data"]
        return float((np.array(found) == labels).mean())

    def job(self, run: str) -> dict[str, Any]:
        found = self.platform.kubectl("get", "jobs.batch.volcano.sh", "-n", "ml-dev", run)
        return dict(found)


@pytest.fixture(scope="module")
def team(
    real: Platform, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Team]:
    """The dev stack without jobs and services, with a gateway and Prometheus."""
    real.reset()
    before = real.stack_file.read_text()
    rules = (real.checkout / POLICIES).read_text()
    real.edit(without_prometheus)
    real.make("up")
    prometheus.push_images(real.state)
    prometheus.namespace(real)
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        with gateway.running(real, tmp_path_factory.mktemp("gateway")) as url:
            repository = Repository(real, RESULTS)
            repository.create()
            made = Team(real, checkpoints, repository, url)
            made.merge(STACK)
            prometheus.start(real, INTERVAL)
            yield made
    finally:
        shutil.rmtree(real.checkout / ".git", ignore_errors=True)
        real.stack_file.write_text(before)
        (real.checkout / POLICIES).write_text(rules)
        real.shell(UPDATE)
        prometheus.stop(real)


def without_prometheus(config: dict[str, Any]) -> None:
    """Set the base images that `make up` builds. The namespace of Prometheus does not exist yet."""
    remove_jobs(config)
    changes()[STACK].apply(config)
    del config["gpu-platform:monitoring"]["prometheus"]


@pytest.fixture(scope="module")
def traffic(team: Team) -> Iterator[Traffic]:
    """Clients of the service, which start before its first canary."""
    with (
        Load(team.infer, inference_request(SHAPE, slice(1)), CLIENTS, PAUSE) as load,
        Traffic(team.platform, load) as found,
    ):
        yield found
    names = {team.version(key): key for key in team.runs if (key in SERVED)}
    found.save(RESULTS / "traffic.json")
    draw(found, names, RESULTS / "traffic.svg")


SERVED = ("baseline", "final", "grey")


def test_data_is_prepared_and_validated_before_the_first_training(team: Team) -> None:
    comment, _ = team.merge(DATA)
    assert "baseline" in comment
    trained = team.wait_for_export("baseline")
    folder = team.checkpoints / team.runs["baseline"]
    report = json.loads((folder / "data.json").read_text())
    assert report["problems"] == []
    assert report["train"]["samples"] + report["held_out"]["samples"] > 1700
    assert sorted(report["classes"]) == [str(digit) for digit in range(10)]
    assert report["data_sha256"] == trained.data_sha256
    (RESULTS / "data.json").write_text(json.dumps(report))
    await_(lambda: answers(team), "the first model")
    assert team.accuracy() == pytest.approx(trained.metrics["accuracy"], abs=0.01)


def answers(team: Team) -> bool:
    document = inference_request(SHAPE, slice(1))
    return httpx.post(team.infer, json=document, timeout=60, trust_env=False).is_success


def summary(team: Team) -> dict[str, Any]:
    name = template_name("digits")
    found = team.platform.kubectl("get", "jobtemplates.flow.volcano.sh", name, "-n", "ml-dev")
    annotations = found["metadata"].get("annotations", {})
    return dict(json.loads(annotations.get(SWEEP_SUMMARY_ANNOTATION, "{}")))


def test_a_sweep_of_24_trials_finds_a_better_model(team: Team) -> None:
    comment, _ = team.merge(SEARCH)
    assert "is a sweep" in comment
    await_(lambda: summary(team).get("state") == "complete", "the end of the sweep")
    found = summary(team)
    assert len(found["trials"]) == TRIALS
    phases = {trial["phase"] for trial in found["trials"]}
    assert {"succeeded", "paused"} <= phases <= {"succeeded", "paused", "failed"}
    winner = found["trials"][0]
    assert winner["phase"] == "succeeded"
    assert winner["value"] > team.manifest("baseline").metrics["accuracy"]
    team.runs["digits"] = winner["run"]
    command = "python -m gpu_platform sweeps --namespace ml-dev"
    (RESULTS / "sweep.txt").write_text(team.platform.shell(command))
    team.platform.shell(f"{command} --html {RESULTS}/sweep.html")
    plots = re.findall(
        r"data:image/svg\+xml;base64,([\w+/=]+)", (RESULTS / "sweep.html").read_text()
    )
    for number, plot in enumerate(plots):
        (RESULTS / f"sweep-{number}.svg").write_bytes(base64.b64decode(plot))
    assert len(plots) == 3


def test_winner_of_the_sweep_becomes_a_run_that_another_job_starts_from(team: Team) -> None:
    winner = summary(team)["trials"][0]
    before = team.job(winner["run"])["metadata"]["uid"]
    change = team.change(WINNER)
    job = change.settings["gpu-platform:training"]["jobs"]["digits"]
    job["hyperparameters"].update(winner["hyperparameters"])
    team.repository.merge(WINNER, change)
    team.repository.update()
    assert team.platform.run_name("digits") == winner["run"]
    assert team.job(winner["run"])["metadata"]["uid"] == before
    trained = team.wait_for_export("final")
    assert trained.metrics["accuracy"] >= winner["value"] - 0.01


def test_gate_admits_a_better_model_as_a_canary_for_a_fifth_of_the_requests(
    team: Team, traffic: Traffic
) -> None:
    traffic.mark("canary")
    seen = traffic.load.during(lambda: team.merge(CANARY), at_least=50)
    assert seen.failed == {}
    assert weights(team.platform) == {"digits": 80, "digits-canary": 20}
    pod = canary_pod(team)
    text = team.platform.shell(f"kubectl logs -n ml-dev {pod['metadata']['name']} -c promote")
    (RESULTS / "gate.json").write_text(text)
    decision = json.loads(text)
    assert (decision["event"], decision["run"]) == ("promoted", team.runs["final"])
    final = team.version("final")
    await_(lambda: final in latest_responses(traffic).versions, "the canary")
    there = traffic.load.during(lambda: None, at_least=SAMPLE)
    assert there.failed == {}
    assert abs(there.versions[final] / there.answered - SHARE) < TOLERANCE


def latest_responses(traffic: Traffic) -> Any:
    return traffic.load.during(lambda: None, at_least=40)


def canary_pod(team: Team) -> dict[str, Any]:
    selector = "gpu-platform.dev/service=digits-canary"
    found = team.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"]
    (pod,) = (each for each in found if "deletionTimestamp" not in each["metadata"])
    return dict(pod)


def test_promoted_model_serves_all_requests_and_none_is_lost(team: Team, traffic: Traffic) -> None:
    traffic.mark("promotion")
    seen = traffic.load.during(lambda: team.merge(PROMOTION), at_least=50)
    final = team.version("final")
    await_(lambda: set(latest_responses(traffic).versions) == {final}, "the promoted model alone")
    assert seen.failed == {}
    assert traffic.load.seen().failed == {}
    assert team.accuracy() == pytest.approx(team.manifest("final").metrics["accuracy"], abs=0.01)


def test_worse_model_is_rejected_by_the_gate(team: Team, traffic: Traffic) -> None:
    team.merge(CANDIDATES)
    worse = team.wait_for_export("hasty")
    incumbent = team.manifest("final")
    assert worse.metrics["accuracy"] < incumbent.metrics["accuracy"] - 0.002
    traffic.mark("worse model")
    output: list[str] = []
    seen = traffic.load.during(lambda: output.extend(team.merge(WORSE, status=1)), at_least=50)
    assert "digits-canary" in output[1]
    message = refusal(canary_pod(team))
    (RESULTS / "refused.txt").write_text(message)
    assert f"{team.runs['hasty']} is not promoted: accuracy is" in message
    assert seen.failed == {}
    assert set(seen.versions) == {team.version("final")}
    assert weights(team.platform) == {"digits": 100}
    team.repository.revert()
    team.repository.update()


def refusal(pod: dict[str, Any]) -> str:
    """Return the message of the gate, whose container has exited or is waiting for a restart."""
    (status,) = pod["status"]["initContainerStatuses"]
    ended = status["state"].get("terminated") or status["lastState"]["terminated"]
    return str(ended["message"])


def is_released(platform: Platform) -> bool:
    """Return whether a rollback is complete: it is reported, and its fields are released."""
    command = ("get", "httproute", "digits", "-n", "ml-dev", "--show-managed-fields")
    managed = platform.kubectl(*command)["metadata"]["managedFields"]
    return FIELD_MANAGER not in {each["manager"] for each in managed}


def test_a_model_that_fails_under_load_is_rolled_back(team: Team, traffic: Traffic) -> None:
    team.wait_for_export("grey")
    before = traffic.load.seen()
    assert before.failed == {}
    traffic.mark("bad model")
    team.merge(BAD)
    await_(lambda: weights(team.platform) == {"digits": 100}, "the rollback")
    traffic.mark("rolled back")
    await_(lambda: is_released(team.platform), "a route without fields of the rollback")
    route = team.platform.kubectl("get", "httproute", "digits", "-n", "ml-dev")
    reason = route["metadata"]["annotations"][ROLLED_BACK_ANNOTATION]
    (RESULTS / "rolled-back.txt").write_text(reason)
    assert "share of failed requests" in reason
    await_(lambda: latest_responses(traffic).failed == {}, "the end of the failures")
    failed = traffic.load.since(before).failed
    # The model with another input shape responds with 400; the served model has not failed.
    assert set(failed) == {"400"}
    quiet = traffic.load.during(lambda: None, at_least=SAMPLE)
    assert quiet.failed == {}
    assert set(quiet.versions) == {team.version("final")}
    events = team.platform.kubectl(
        "get", "events", "-n", "ml-dev", "--field-selector=reason=CanaryRolledBack"
    )
    (RESULTS / "events.json").write_text(json.dumps(events))
    assert events["items"]
    traffic.mark("removed")
    team.repository.revert()
    team.repository.update()
    assert weights(team.platform) == {"digits": 100}
    assert latest_responses(traffic).failed == {}
