"""The command line for teams, which reports mistakes before it sends anything to a cluster."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devcluster.paths import CHECKOUT
from gitops.errors import GitopsError
from gitops.forecast import simulate
from gitops.forecast.answer import Answer
from gitops.forecast.state import Queue, State, dump
from gpu_platform.runs.cluster import Member
from gpu_platform.runs.command import main
from tests.gitops.forecast.states import state
from tests.gitops.forecast.test_gantt import answer, gang

JOB = {
    "queue": "research",
    "nodes": 1,
    "gpus_per_node": 1,
    "cpu": 4,
    "memory": "16Gi",
    "hyperparameters": {"model": "digits-net", "dataset": "digits"},
}
PLATFORM = """{
  "stack": "lab",
  "outputs": {
    "namespace": "vision", "queues": ["research"], "claims": {"checkpoints": "checkpoints"},
    "gpuNodes": {"resource": "nvidia.com/gpu", "nodeSelector": {}, "tolerations": [
      {"key": "nvidia.com/gpu", "operator": "Exists"}
    ]},
    "images": {"training": "registry.example.com/a@sha256:%s"}
  },
  "identities": {"training": "a"}, "labels": {}, "annotations": {}
}""" % ("0" * 64)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"tiny": JOB}))
    (tmp_path / "platform.json").write_text(PLATFORM)
    (tmp_path / "array.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "unknown.json").write_text('{"no-such-rule": "disabled"}')
    (tmp_path / "strict.json").write_text('{"training-ends": "mandatory"}')
    return tmp_path


def submit(files: Path, *options: str) -> int:
    job, platform = str(files / "job.yaml"), str(files / "platform.json")
    return main(["run", job, "--namespace", "vision", "--platform", platform, *options])


def test_dry_run_prints_manifests_and_advisory_violations(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(files, "--dry-run") == 0
    captured = capsys.readouterr()
    (job,) = yaml.safe_load_all(captured.out)
    assert (job["kind"], job["metadata"]["namespace"]) == ("Job", "vision")
    assert "violates the advisory rule training-ends" in captured.err


def test_kubectl_ignores_the_users_preferences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERC", "preferences")
    monkeypatch.setattr(Member, "stop", lambda *_: None)
    assert main(["stop", "tiny", "--namespace", "vision"]) == 0
    assert os.environ["KUBERC"] == "off"


def test_namespace_without_sweeps_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Member, "sweeps", lambda _: {})
    assert main(["sweeps", "--namespace", "visoin"]) == 0
    assert capsys.readouterr().out == "no sweeps in namespace visoin\n"


def test_cost_of_every_step_is_printed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"command": ["true"], "gpus": 1, "cpu": 1, "memory": "4Gi", "after": ["train"]}
    gpus = {"gpus_per_node": 4, "gpu_product": "NVIDIA-L4", "attempt_deadline_seconds": 7200}
    job = JOB | gpus | {"steps": {"evaluate": evaluation}}
    (files / "job.yaml").write_text(yaml.safe_dump({"tiny": job}))
    assert submit(files, "--dry-run") == 0
    lines = capsys.readouterr().err.splitlines()
    evaluated, trained = (line for line in lines if " per hour" in line)
    assert "(evaluate): 1 GPU, 0.75 USD per hour" in evaluated
    assert "(train): 4 GPUs, 3.00 USD per hour, at most 6.00 until" in trained
    assert "each attempt" in trained


def test_policy_configuration_of_the_stack_is_used(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "platform.json").write_text(PLATFORM.replace('"lab"', '"prod"'))
    assert submit(files, "--dry-run") == 3
    assert "violates the mandatory rule training-ends" in capsys.readouterr().err


def test_run_that_violates_a_mandatory_policy_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(files, "--dry-run", "--policy-config", str(files / "strict.json")) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "violates the mandatory rule training-ends" in captured.err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("array.json", "it must be a JSON object"),
        ("broken.json", "is not JSON"),
        ("unknown.json", "no-such-rule"),
        ("missing.json", "cannot be read"),
    ],
)
def test_error_names_the_invalid_policy_configuration(
    file: str, message: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(files, "--dry-run", "--policy-config", str(files / file)) == 1
    assert message in capsys.readouterr().err


def test_run_in_another_namespace_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, platform = str(files / "job.yaml"), str(files / "platform.json")
    arguments = ["run", job, "--namespace", "other", "--platform", platform, "--dry-run"]
    assert main(arguments) == 1
    assert "vision" in capsys.readouterr().err


def test_image_without_an_identity_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "platform.json").write_text(PLATFORM.replace('{"training": "a"}', "{}"))
    assert submit(files, "--dry-run") == 1
    assert (
        "image is 'training', which is not among the platform's images: declare it there"
        in capsys.readouterr().err
    )


def test_notebook_with_a_route_must_be_defined_in_the_stack(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    route = {"gateway": {"name": "public"}, "path": "/anna"}
    notebook = {"home": "checkpoints", "token_secret": "anna", "route": route}
    job = {key: value for key, value in JOB.items() if key != "hyperparameters"}
    written = {**job, "kind": "notebook", "priority_class": "low", "notebook": notebook}
    (files / "job.yaml").write_text(yaml.safe_dump({"anna": written}))
    assert submit(files, "--dry-run") == 0
    assert "HTTPRoute" in capsys.readouterr().out
    assert submit(files) == 1
    assert "omit the route" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["rum"], ["stop", "--namespace", "a"]])
def test_invalid_arguments_have_a_distinct_exit_status(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 64


@pytest.mark.parametrize("name", ["", "größe-x", "a b", "a,b=c", "-a", "Digits", "a" * 64, "a\n"])
def test_names_that_no_object_can_have_are_rejected(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["list", f"--namespace={name}"], ["stop", "--namespace=a", "--", name]):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        assert exited.value.code == 64
        assert f"{name!r} is not a valid name: use" in capsys.readouterr().err


def test_help_describes_the_file_and_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert exited.value.code == 0
    captured = capsys.readouterr().out
    assert all(words in captured for words in ("job.yaml", "exit status", "--follow", "queue:"))


def test_simulation_does_not_submit_the_run(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[State] = []

    def fake_simulation(state: State, *_: object, base: State) -> Answer:
        simulated.extend((base, state))
        return answer(gang("tiny", "starts at once", 0, None, added=True))

    monkeypatch.setattr(simulate, "simulate", fake_simulation)
    before = state()
    before.queues.append(Queue(name="research"))
    (files / "cluster.yaml").write_text(dump(before, as_yaml=True))
    assert submit(files, "--simulate", str(files / "cluster.yaml")) == 0
    assert "ml/tiny  vision  8     starts at once" in capsys.readouterr().out
    base, changed = simulated
    (added,) = (gang for gang in changed.gangs if gang not in base.gangs)
    assert (added.namespace, added.queue, added.size) == ("vision", "research", 1)
    assert added.name.startswith("tiny-")


def test_interrupting_follow_does_not_stop_the_run(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Member, run: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Member, "create", lambda *_: True)
    monkeypatch.setattr(Member, "follow", interrupted)
    assert submit(files, "--follow") == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("tiny-")
    assert "interrupted; objects that were created remain" in captured.err


def test_interrupted_command_that_creates_nothing_does_not_mention_objects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Member) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Member, "sweeps", interrupted)
    assert main(["sweeps", "--namespace", "vision"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (("12", None), "12 nvidia.com/gpu are allocated in queue research, which has no limit"),
        (("16", "16"), "0 of 16 nvidia.com/gpu are left in queue research, so the run waits"),
        (
            ("12", "16"),
            "4 of 16 nvidia.com/gpu are left in queue research; the number of free devices "
            "on the nodes is unknown",
        ),
    ],
)
def test_free_devices_in_the_queue_are_reported(
    found: tuple[str, str | None],
    message: str,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Member, "description", lambda self: PLATFORM)
    monkeypatch.setattr(Member, "quota", lambda *_: iter(()))
    monkeypatch.setattr(Member, "queue", lambda *_: found)
    assert main(["run", str(files / "job.yaml"), "--namespace", "vision", "--dry-run"]) == 0
    assert message in capsys.readouterr().err


def test_reason_is_stated_if_the_queue_cannot_be_read(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def queue(*_: object) -> None:
        raise GitopsError('queues "research" not found')

    monkeypatch.setattr(Member, "description", lambda self: PLATFORM)
    monkeypatch.setattr(Member, "quota", lambda *_: iter(()))
    monkeypatch.setattr(Member, "queue", queue)
    assert main(["run", str(files / "job.yaml"), "--namespace", "vision", "--dry-run"]) == 0
    expected = 'free nvidia.com/gpu in queue research is unknown: queues "research" not found\n'
    assert expected in capsys.readouterr().err


def test_run_that_exceeds_the_quota_is_reported(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Member, "description", lambda self: PLATFORM)
    monkeypatch.setattr(Member, "quota", lambda *_: iter([("team", "8", "8")]))
    monkeypatch.setattr(Member, "queue", lambda *_: ("0", None))
    assert main(["run", str(files / "job.yaml"), "--namespace", "vision", "--dry-run"]) == 0
    assert (
        "0 of 8 nvidia.com/gpu are left in quota team, so the API server may reject the run's "
        "pods. Volcano terminates a Volcano Job after about three minutes without its pods; jobs "
        "of other kinds wait."
    ) in capsys.readouterr().err


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_command_cleans_up_before_it_exits(tmp_path: Path, ending: int) -> None:
    kubectl, started = tmp_path / "kubectl", tmp_path / "started"
    os.mkfifo(started)
    kubectl.write_text(f"#!/bin/sh\necho > {started}\nexec sleep 60\n")
    kubectl.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_platform", "list", "--namespace", "vision"],
        cwd=CHECKOUT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    started.read_text()
    process.send_signal(ending)
    # Without a handler, the status would be negative, and nothing would be cleaned up.
    assert process.wait(60) == 128 + ending
