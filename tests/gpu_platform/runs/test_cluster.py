"""Requests from members to the API server, and its responses."""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gitops.errors import GitopsError
from gpu_platform.runs.cluster import SUPPLEMENTS, Member
from kube.kinds import KINDS, RESOURCES
from kube.kinds.record import State
from kube.kinds.volcano import FLOW
from tests.infra.jobs import job, objects


class Api(Member):
    """A member with a fake kubectl, whose first two arguments select the response.

    By default, every list is empty.
    """

    def __init__(self, kubectl: Sequence[str] = ("kubectl",)) -> None:
        super().__init__(kubectl, "vision")
        self.answers: dict[str, tuple[str, str]] = {}
        self.calls: list[list[str]] = []

    def has(self, resource: str, *items: dict[str, Any]) -> None:
        self.answers[f"get {resource}"] = (json.dumps({"items": items}), "")

    def fail(self, command: str, error: str) -> None:
        self.answers[command] = ("", error)

    def _run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = " ".join(arguments[:2])
        empty = "" if command == "get configmap" else '{"items": []}'
        out, error = self.answers.get(command, (empty, ""))
        if arguments[0] != "get":
            self.calls.append([*arguments, *([stdin] if stdin else [])])
        return subprocess.CompletedProcess(arguments, 1 if error else 0, out, error)


@pytest.fixture
def api() -> Api:
    return Api()


def item(version: str, kind: str, **metadata: Any) -> dict[str, Any]:
    described = {"name": "tiny-1a2b3c4d", "namespace": "vision", "uid": "7", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": described}


MISSING = "error: the server doesn't have a resource type"
VOLCANO = item("batch.volcano.sh/v1alpha1", "Job")


@pytest.mark.parametrize(("suspended", "action"), [(True, "AbortJob"), (False, "ResumeJob")])
def test_volcano_job_is_suspended_and_resumed_with_a_command(
    api: Api, suspended: bool, action: str
) -> None:
    api.has("jobs.batch.volcano.sh", VOLCANO)
    api.suspend("tiny-1a2b3c4d", suspended)
    ((verb, _, sent),) = api.calls
    command = json.loads(sent)
    assert (verb, command["action"], command["target"]["uid"]) == ("create", action, "7")


def notebook(phase: str) -> dict[str, Any]:
    labels = {"gpu-platform.dev/workload": "interactive"}
    made = item("batch.volcano.sh/v1alpha1", "Job", labels=labels, resourceVersion="9")
    return {**made, "spec": {"queue": "vision"}, "status": {"state": {"phase": phase}}}


@pytest.mark.parametrize("phase", ["Aborted", "Completed", "Failed", "Terminated"])
def test_suspended_notebook_is_resumed_by_re_creating_its_job(
    api: Api, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    api.has("jobs.batch.volcano.sh", notebook(phase))
    api.suspend("tiny-1a2b3c4d", suspended=False)
    deletion, creation = api.calls
    assert deletion[:3] == ["delete", "jobs.batch.volcano.sh", "tiny-1a2b3c4d"]
    assert "--cascade=foreground" in deletion
    sent = json.loads(creation[-1])
    assert sent["spec"] == {"queue": "vision"}
    assert sent["metadata"] == {
        "name": "tiny-1a2b3c4d",
        "namespace": "vision",
        "labels": {"gpu-platform.dev/workload": "interactive"},
    }
    assert "status" not in sent
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["delete jobs.batch.volcano.sh", "create --filename=-"])
def test_job_of_a_notebook_that_is_not_re_created_remains_in_a_file(
    api: Api, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    api.has("jobs.batch.volcano.sh", notebook("Aborted"))
    api.fail(command, "denied")
    with pytest.raises(GitopsError, match="was not re-created: denied") as exc_info:
        api.suspend("tiny-1a2b3c4d", suspended=False)
    (file,) = tmp_path.iterdir()
    assert str(file) in str(exc_info.value)
    assert json.loads(file.read_text())["spec"] == {"queue": "vision"}


@pytest.mark.parametrize("phase", ["Running", "Pending", "Restarting"])
def test_resuming_a_notebook_that_is_not_suspended_fails(api: Api, phase: str) -> None:
    api.has("jobs.batch.volcano.sh", notebook(phase))
    with pytest.raises(GitopsError, match="is not suspended"):
        api.suspend("tiny-1a2b3c4d", suspended=False)
    assert api.calls == []


@pytest.mark.parametrize("phase", ["Running", "Completed"])
def test_notebook_is_suspended_like_a_run_even_if_its_server_has_exited(
    api: Api, phase: str
) -> None:
    api.has("jobs.batch.volcano.sh", notebook(phase))
    api.suspend("tiny-1a2b3c4d", suspended=True)
    ((verb, _, sent),) = api.calls
    assert (verb, json.loads(sent)["action"]) == ("create", "AbortJob")


@pytest.mark.parametrize(
    ("resource", "version", "kind", "patch"),
    [
        ("jobs.batch", "batch/v1", "Job", {"spec": {"suspend": True}}),
        (
            "pytorchjobs.kubeflow.org",
            "kubeflow.org/v1",
            "PyTorchJob",
            {"spec": {"runPolicy": {"suspend": True}}},
        ),
    ],
)
def test_other_kinds_are_suspended_with_a_patch(
    api: Api, resource: str, version: str, kind: str, patch: dict[str, Any]
) -> None:
    api.has(resource, item(version, kind))
    api.suspend("tiny-1a2b3c4d", suspended=True)
    ((verb, name, _, _, sent),) = api.calls
    assert (verb, name) == ("patch", resource)
    assert json.loads(sent.removeprefix("-p=")) == patch


@pytest.mark.parametrize(
    ("resource", "finished", "state"),
    [
        ("jobs.batch.volcano.sh", {"state": {"phase": "Completed"}}, "succeeded"),
        ("jobs.batch", {"conditions": [{"type": "Failed", "status": "True"}]}, "failed"),
    ],
)
@pytest.mark.parametrize("suspended", [True, False])
def test_finished_run_is_neither_suspended_nor_resumed(
    api: Api, resource: str, finished: dict[str, Any], state: str, suspended: bool
) -> None:
    api.has(resource, {**item("v1", "Job"), "status": finished})
    with pytest.raises(GitopsError, match=f"cannot be (suspended|resumed): it has {state}"):
        api.suspend("tiny-1a2b3c4d", suspended)
    assert api.calls == []


def test_suspending_a_run_with_steps_fails(api: Api) -> None:
    api.has("jobflows.flow.volcano.sh", item("flow.volcano.sh/v1alpha1", "JobFlow"))
    with pytest.raises(GitopsError, match="has steps"):
        api.suspend("tiny-1a2b3c4d", suspended=True)


def test_stop_deletes_only_objects_without_an_owner(api: Api) -> None:
    owners = [{"kind": "JobFlow", "controller": True}]
    owned = item("batch.volcano.sh/v1alpha1", "Job", ownerReferences=owners)
    api.has("jobflows.flow.volcano.sh", item("flow.volcano.sh/v1alpha1", "JobFlow"))
    api.has("jobtemplates.flow.volcano.sh", item("flow.volcano.sh/v1alpha1", "JobTemplate"))
    api.has("jobs.batch.volcano.sh", owned)
    api.stop("tiny-1a2b3c4d")
    assert [call[:2] for call in api.calls] == [
        ["delete", "jobflows.flow.volcano.sh"],
        ["delete", "jobtemplates.flow.volcano.sh"],
    ]


def test_stop_deletes_supplements_that_the_job_does_not_own(api: Api) -> None:
    labels = {"gpu-platform.dev/run": "tiny-1a2b3c4d"}
    api.has("jobs.batch", item("batch/v1", "Job", labels=labels))
    forbidden = (
        'Error from server (Forbidden): services "tiny-1a2b3c4d" is forbidden: User "ann" cannot '
        'delete resource "services" in API group "" in the namespace "team"'
    )
    api.fail("delete services", forbidden)
    api.fail("delete trainingruntimes.trainer.kubeflow.org", MISSING)
    api.stop("tiny-1a2b3c4d")
    assert [call[:3] for call in api.calls] == [
        ["delete", resource, "tiny-1a2b3c4d"] for resource in ("jobs.batch", *SUPPLEMENTS)
    ]


@pytest.mark.parametrize(
    "error",
    [
        "Unable to connect to the server",
        'Error from server (Forbidden): services "tiny-1a2b3c4d" is forbidden: '
        "ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: ask the owner",
    ],
)
def test_a_failed_deletion_is_reported(api: Api, error: str) -> None:
    labels = {"gpu-platform.dev/run": "tiny-1a2b3c4d"}
    api.has("jobs.batch", item("batch/v1", "Job", labels=labels))
    api.fail("delete services", error)
    with pytest.raises(GitopsError, match=re.escape(error)):
        api.stop("tiny-1a2b3c4d")


@pytest.mark.parametrize("kind", KINDS)
def test_every_supplement_of_a_kind_is_deleted(kind: str) -> None:
    run = "job-0123abcd"
    for made in objects(job(kind), run):
        group = made["apiVersion"].rpartition("/")[0]
        if any((group, made["kind"]) == (each.group, each.kind) for each in RESOURCES):
            continue
        plurals = {"NetworkPolicy": "networkpolicies"}
        plural = plurals.get(made["kind"], f"{made['kind'].lower()}s")
        assert ".".join(filter(None, [plural, group])) in SUPPLEMENTS
        assert made["metadata"]["name"] == run


def test_scheduled_run_is_found_even_though_a_job_owns_it(api: Api) -> None:
    flow = item("flow.volcano.sh/v1alpha1", "JobFlow", ownerReferences=[{"kind": "Job"}])
    api.has("jobflows.flow.volcano.sh", flow)
    assert api.find("tiny-1a2b3c4d") == [(FLOW, flow)]


def test_following_ends_when_a_step_fails(api: Api) -> None:
    flow = item("flow.volcano.sh/v1alpha1", "JobFlow")
    failed = {"name": "tiny-1a2b3c4d-1a2b3c4d-prepare", "state": "Failed"}
    status = {"state": {"phase": "Running"}, "jobStatusList": [failed]}
    api.has("jobflows.flow.volcano.sh", {**flow, "status": status})
    assert api.follow("tiny-1a2b3c4d") is State.FAILED


UNREACHABLE = "The connection to the server 10.0.0.1:6443 was refused"


def test_following_continues_after_an_outage_of_the_api_server(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.has("jobs.batch.volcano.sh", {**VOLCANO, "status": {"state": {"phase": "Pending"}}})
    turns = now = 0

    def advance(_: float) -> None:
        nonlocal turns, now
        turns += 1
        if turns < 4:
            now = 10_000  # Before the outage, the logs are followed for hours.
            api.fail("get jobs.batch.volcano.sh", UNREACHABLE)
        else:
            finished = {**VOLCANO, "status": {"state": {"phase": "Completed"}}}
            api.has("jobs.batch.volcano.sh", finished)

    monkeypatch.setattr(time, "sleep", advance)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert api.follow("tiny-1a2b3c4d") is State.SUCCEEDED
    assert capsys.readouterr().err.count(UNREACHABLE) == 1


@pytest.mark.parametrize("reached", [False, True])
def test_following_ends_if_the_api_server_remains_unreachable(
    api: Api, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.has("jobs.batch.volcano.sh", {**VOLCANO, "status": {"state": {"phase": "Pending"}}})
    if not reached:
        api.fail("get jobs.batch.volcano.sh", UNREACHABLE)
    now = 0.0

    def advance(_: float) -> None:
        nonlocal now
        now += 100
        api.fail("get jobs.batch.volcano.sh", UNREACHABLE)

    monkeypatch.setattr(time, "sleep", advance)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(GitopsError, match=UNREACHABLE):
        api.follow("tiny-1a2b3c4d")
    assert (now > 0) is reached


KUBECTL = """
for time in 1 2; do
  echo "[pod/worker-0/training] 2026-11-21T21:00:0$time.000000000Z line $time"
done
echo "error: worker-1 has not started"
"""


def test_each_log_line_is_printed_once_even_if_a_pod_has_not_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Api(["sh", "-c", KUBECTL])
    running = {"spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}
    api.has("jobs.batch.volcano.sh", {**VOLCANO, "status": {"state": {"phase": "Running"}}})
    api.has("pods", running, {"spec": {}, "status": {"phase": "Pending"}})

    def complete(_: float) -> None:
        api.has("jobs.batch.volcano.sh", {**VOLCANO, "status": {"state": {"phase": "Completed"}}})

    monkeypatch.setattr(time, "sleep", complete)
    assert api.follow("tiny-1a2b3c4d") is State.SUCCEEDED
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("[pod/")] == [
        "[pod/worker-0/training] line 1",
        "[pod/worker-0/training] line 2",
    ]
    assert "error: worker-1 has not started" in lines


def test_later_log_lines_are_requested_by_the_clock_of_the_nodes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def logs(_: str, *options: str) -> list[str]:
        commands.append(options)
        return ["sh", "-c", KUBECTL]

    monkeypatch.setattr(api, "_logs_command", logs)
    printed: dict[str, str] = {}
    since = api._follow_logs("tiny-1a2b3c4d", "", printed)
    assert api._follow_logs("tiny-1a2b3c4d", since, printed) == since
    assert "--tail=-1" in commands[0]
    assert "--since-time=2026-11-21T21:00:01.000000000Z" in commands[1]


def test_carriage_returns_do_not_end_a_line(
    api: Api, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, first = "[pod/worker-0/training]", "2026-11-21T21:00:01.000000000Z"
    script = f"printf '{prefix} {first} 10%%\\r20%%\\r30%%\\n'"
    monkeypatch.setattr(api, "_logs_command", lambda *_: ["sh", "-c", script])
    printed: dict[str, str] = {}
    api._follow_logs("tiny-1a2b3c4d", "", printed)
    api._follow_logs("tiny-1a2b3c4d", "", printed)
    assert capsysbinary.readouterr().out == f"{prefix} 10%\r20%\r30%\n".encode()


def test_error_names_the_unknown_run(api: Api) -> None:
    with pytest.raises(GitopsError, match="has no run 'other'"):
        api.stop("other")


def test_job_kinds_without_an_installed_operator_are_skipped(api: Api) -> None:
    api.has("jobs.batch.volcano.sh", VOLCANO)
    api.fail("get rayjobs.ray.io", MISSING)
    api.stop("tiny-1a2b3c4d")
    assert len(api.calls) == 1


def test_creating_an_existing_run_is_not_an_error(api: Api) -> None:
    api.fail("create --filename=-", "Error from server (AlreadyExists): exists")
    assert api.create([VOLCANO]) is False


def test_run_that_would_start_another_runs_templates_is_rejected(api: Api) -> None:
    labels = {"gpu-platform.dev/run": "tiny-1a2b3c4d"}
    template = item("flow.volcano.sh/v1alpha1", "JobTemplate", name="1a2b3c4d-train", labels=labels)
    api.fail("create --filename=-", "Error from server (AlreadyExists): exists")
    api.has("jobtemplates.flow.volcano.sh", template)
    assert api.create([template]) is False
    other = {"gpu-platform.dev/run": "copy-1a2b3c4d"}
    copy = {**template, "metadata": {**template["metadata"], "labels": other}}
    with pytest.raises(GitopsError, match=r"belongs to run tiny-1a2b3c4d, .* `attempt`"):
        api.create([copy])


@pytest.mark.parametrize(
    ("request_", "denied"),
    [
        (lambda api: api.stop("tiny-1a2b3c4d"), "delete jobs.batch.volcano.sh"),
        (lambda api: api.suspend("tiny-1a2b3c4d", True), "create --filename=-"),
        (lambda api: api.create([VOLCANO]), "create --filename=-"),
        (lambda api: api.find("tiny-1a2b3c4d"), "get jobs.batch"),
    ],
)
def test_missing_permissions_are_explained(
    api: Api, request_: Callable[[Api], object], denied: str
) -> None:
    labels = {"gpu-platform.dev/run": "tiny-1a2b3c4d"}
    running = item("batch.volcano.sh/v1alpha1", "Job", labels=labels)
    api.has("jobs.batch.volcano.sh", {**running, "status": {"state": {"phase": "Running"}}})
    api.fail(denied, 'jobs is forbidden: User "ann" cannot delete resource "jobs" in API group ""')
    with pytest.raises(GitopsError, match=r'"ann" cannot delete .*tenancy\.groups .*teams\.md'):
        request_(api)


def test_rejection_reason_from_the_api_server_is_reported(api: Api) -> None:
    api.fail("create --filename=-", "admission webhook denied the request: queue is closed")
    with pytest.raises(GitopsError, match=r"Job tiny-1a2b3c4d was not created: .*queue is closed"):
        api.create([VOLCANO])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("", "has no ConfigMap gpu-platform"),
        ('User "ann" cannot get resource "configmaps" in', r"cannot get .*; .*tenancy\.groups "),
        ('error: context "prd" does not exist', 'context "prd" does not exist$'),
    ],
)
def test_unreadable_platform_description_is_explained(api: Api, error: str, message: str) -> None:
    if error:
        api.fail("get configmap", error)
    with pytest.raises(GitopsError, match=message):
        api.description()


def test_device_quota_is_read(api: Api) -> None:
    status = {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "6"}}
    api.has("resourcequotas", {"metadata": {"name": "team"}, "status": status})
    found = list(api.quota("nvidia.com/gpu"))
    assert found == [("team", "6", "8")]


@pytest.mark.parametrize(
    ("capability", "status", "expected"),
    [
        ({"nvidia.com/gpu": 16}, {"allocated": {"nvidia.com/gpu": "12"}}, ("12", "16")),
        ({"nvidia.com/gpu": 16}, {"allocated": {"cpu": "0"}}, ("0", "16")),
        ({"cpu": 16}, {"allocated": {"nvidia.com/gpu": "12"}}, ("12", None)),
    ],
)
def test_allocated_and_total_devices_of_a_queue_are_read(
    api: Api, capability: dict[str, Any], status: dict[str, Any], expected: Any
) -> None:
    document = {"spec": {"capability": capability}, "status": status}
    api.answers["get queues.scheduling.volcano.sh"] = (json.dumps(document), "")
    assert api.queue("research", "nvidia.com/gpu") == expected


def test_error_states_why_the_devices_of_a_queue_are_unknown(api: Api) -> None:
    api.answers["get queues.scheduling.volcano.sh"] = ("{}", "")
    with pytest.raises(GitopsError, match="has not set the queue's status yet"):
        api.queue("research", "nvidia.com/gpu")
    api.fail("get queues.scheduling.volcano.sh", 'queues "research" not found')
    with pytest.raises(GitopsError, match=r'^queues "research" not found$'):
        api.queue("research", "nvidia.com/gpu")
    api.fail("get queues.scheduling.volcano.sh", 'User "ann" cannot get resource "queues" in')
    with pytest.raises(GitopsError, match=r"an administrator can grant .*docs/teams\.md"):
        api.queue("research", "nvidia.com/gpu")


@pytest.mark.parametrize("answer", ["Welcome", '{"items": [{"meta', "[]", '{"items": null}'])
def test_unexpected_kubectl_output_is_quoted_in_the_error(api: Api, answer: str) -> None:
    names = ("configmap", "queues.scheduling.volcano.sh", "resourcequotas")
    api.answers = {f"get {name}": (answer, "") for name in names}
    expected = re.escape(f"expected JSON from kubectl, but got {answer!r}")
    with pytest.raises(GitopsError, match=expected):
        api.description()
    with pytest.raises(GitopsError, match=expected):
        list(api.quota("nvidia.com/gpu"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("printf '\\377\\376'; exit 0", "expected JSON from kubectl, but got"),
        ("printf '\\377' >&2; exit 1", "cannot be listed: \N{REPLACEMENT CHARACTER}"),
        ("exit 1", "cannot be listed: kubectl printed no error"),
        (
            'echo "E1129 16:55:46.982553 memcache.go:265] refused" >&2; echo "server: refused" >&2;'
            "exit 1",
            "cannot be listed: server: refused$",
        ),
    ],
)
def test_kubectl_failure_is_reported_as_a_single_error(
    tmp_path: Path, script: str, message: str
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(GitopsError, match=message):
        Member([str(program)], "vision").find("tiny-1a2b3c4d")


@pytest.mark.parametrize("status", [0, 1])
def test_logs_succeeds_only_if_kubectl_does(tmp_path: Path, status: int) -> None:
    program = tmp_path / "kubectl"
    found = json.dumps({"items": [VOLCANO]})
    program.write_text(f"#!/bin/sh\ncase $1 in logs) exit {status};; esac\necho '{found}'\n")
    program.chmod(0o755)
    assert Member([str(program)], "vision").logs("tiny-1a2b3c4d") is (status == 0)
