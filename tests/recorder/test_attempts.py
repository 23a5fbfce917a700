"""Scheduled runs, with the real Kubernetes client and a simulated transport."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from lightkube import Client

from kube.kinds.volcano import ATTEMPT_FAILED
from recorder.attempts import Attempt, AttemptError, Plan, start
from tests.infra.jobs import job, objects
from tests.recorder.examples import CONFIG, rejection

RUN = "job-0123abcd"
JOB = "job-schedule-29384760"


class World:
    """An API server with the objects that a stack with a scheduled job has created."""

    def __init__(self) -> None:
        steps = {
            "prepare": {"command": ["./prepare", "$(outputs.rows)"], "outputs": {"rows": "number"}},
            "check": {"command": ["./check"], "after": ["train"]},
        }
        specification = job(
            "volcano",
            steps=steps,
            schedule={"cron": "0 3 * * *"},
            inputs={"epochs": "prepare.rows"},
            hyperparameters={"model": "digits-net", "dataset": "digits"},
        )
        manifests = objects(specification, RUN)
        self.stored = {
            f"jobtemplates/{each['metadata']['name']}": each
            for each in manifests
            if each["kind"] == "JobTemplate"
        }
        self.templates = set(self.stored)
        (cron_job,) = (each for each in manifests if each["kind"] == "CronJob")
        pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        self.plan = Plan(**json.loads(pod["containers"][0]["command"][-1]))
        self.failures: list[int] = []
        """Status codes of the next responses; 0 closes the connection, -1 means success."""
        self.polls: list[Callable[[], None]] = []
        """Callbacks for the next polls, called instead of sleeping."""
        self.client = Client(CONFIG, transport=httpx2.MockTransport(self._respond))

    def attempt(self, started_by: str = JOB) -> Attempt:
        return Attempt(self.plan, self.client, started_by, "1234", self._wait)

    def created(self) -> dict[str, Any]:
        return {key: each for key, each in self.stored.items() if key not in self.templates}

    def set_flow_status(self, **status: Any) -> None:
        """Change the status of the only JobFlow."""
        (flow,) = (each for key, each in self.stored.items() if key.startswith("jobflows/"))
        flow["status"] = status

    def succeed(self) -> None:
        self.set_flow_status(
            state={"phase": "Succeed"}, jobStatusList=[{"name": "x", "state": "Completed"}]
        )

    def _wait(self) -> None:
        self.polls.pop(0)()

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        if self.failures:
            code = self.failures.pop(0)
            if not code:
                raise httpx2.ConnectError("connection refused", request=request)
            if code > 0:
                return rejection(code)
        prefix = "/apis/flow.volcano.sh/v1alpha1/namespaces/ml/"
        assert request.url.path.startswith(prefix)
        key = request.url.path.removeprefix(prefix)
        if request.method == "GET":
            stored = self.stored.get(key)
            return rejection(404) if stored is None else httpx2.Response(200, json=stored)
        assert request.method == "POST"
        body = json.loads(request.content)
        key = f"{key}/{body['metadata']['name']}"
        if key in self.stored:
            return rejection(409)
        self.stored[key] = body
        return httpx2.Response(201, json=body)


@pytest.fixture
def world() -> World:
    return World()


def test_run_is_created_from_copies_of_the_templates_with_a_new_name(world: World) -> None:
    world.polls = [world.succeed]
    attempt = world.attempt()
    attempt.run()
    assert attempt.name.startswith("job-")
    assert attempt.name != RUN
    digits = attempt.name.removeprefix("job-")
    created = world.created()
    names = {"prepare", "train", "check"}
    assert set(created) == {
        *(f"jobtemplates/{digits}-{name}" for name in names),
        f"jobflows/{attempt.name}",
    }
    assert RUN not in json.dumps(created)
    for name in names:
        copied = created[f"jobtemplates/{digits}-{name}"]
        original = world.stored[f"jobtemplates/0123abcd-{name}"]
        assert copied["spec"] == json.loads(json.dumps(original["spec"]).replace(RUN, attempt.name))
        assert "annotations" not in copied["metadata"] or not any(
            key.startswith("pulumi.com/") for key in copied["metadata"]["annotations"]
        )
    flow = created[f"jobflows/{attempt.name}"]
    dependencies = {each["name"]: each.get("dependsOn") for each in flow["spec"]["flows"]}
    assert dependencies == {
        f"{digits}-train": {"targets": [f"{digits}-prepare"]},
        f"{digits}-prepare": None,
        f"{digits}-check": {"targets": [f"{digits}-train"]},
    }
    assert flow["metadata"]["labels"]["gpu-platform.dev/run"] == attempt.name


def test_run_is_owned_by_the_job_that_started_it(world: World) -> None:
    world.polls = [world.succeed]
    world.attempt().run()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": "1234"}
    assert [each["metadata"]["ownerReferences"] for each in world.created().values()] == [
        [owner]
    ] * 4


def test_each_job_starts_a_run_with_a_different_name(world: World) -> None:
    assert world.attempt().name == world.attempt().name
    assert world.attempt("job-schedule-29384761").name != world.attempt().name


def test_restarted_program_waits_for_the_run_it_started_before(world: World) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.polls = [interrupt]
    with pytest.raises(KeyboardInterrupt):
        world.attempt().run()
    created_before = world.created()
    # In the meantime, an update of the stack deletes the templates.
    for key in world.templates:
        del world.stored[key]
    world.polls = [world.succeed]
    world.attempt().run()
    assert set(world.created()) == set(created_before)


@pytest.mark.parametrize("state", ["Failed", "Terminated"])
def test_a_failed_step_fails_the_attempt(world: World, state: str) -> None:
    # Volcano reports such a JobFlow as running.
    steps = [{"name": "a-train", "state": "Completed"}, {"name": "a-check", "state": state}]
    world.polls = [lambda: world.set_flow_status(state={"phase": "Running"}, jobStatusList=steps)]
    with pytest.raises(AttemptError, match="a-check has failed"):
        world.attempt().run()


def test_attempt_continues_after_an_api_server_outage(world: World) -> None:
    def fail_next_request() -> None:
        world.failures = [0]

    world.failures = [0, 429]
    world.polls = [lambda: None, lambda: None, fail_next_request, lambda: None, world.succeed]
    world.attempt().run()
    assert world.polls == []


def test_partially_created_run_is_completed_after_an_outage(world: World) -> None:
    # The second template cannot be created.
    world.failures = [-1, -1, -1, -1, 500]
    world.polls = [lambda: None, world.succeed]
    world.attempt().run()
    assert len(world.created()) == 4


def test_run_rejected_by_the_api_server_fails_with_the_reason(world: World) -> None:
    world.failures = [-1, -1, 403]
    with pytest.raises(AttemptError, match="rejected"):
        world.attempt().run()


def test_a_deleted_run_fails_the_attempt(world: World) -> None:
    def delete() -> None:
        for key in world.created():
            del world.stored[key]

    world.polls = [delete]
    with pytest.raises(AttemptError, match="rejected"):
        world.attempt().run()


@pytest.mark.parametrize("plan", ["", "{", "[]", '{"run": "a"}', '{"unknown": 1}'])
def test_unreadable_plan_fails_the_attempt(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(plan) == ATTEMPT_FAILED
    assert capsys.readouterr().err.startswith("the plan cannot be read: ")
