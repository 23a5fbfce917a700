"""Steps with outputs: results, inputs of later steps, and reused results."""

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kube.kinds.volcano import TRAINING_STEP
from tests.training.conftest import make_unavailable
from workload import exit_codes
from workload.manifest import Manifest, Weights, write_manifest
from workload.results import RESULTS_DIRECTORY, TRAINING, StepManifest, collect
from workload.step import main

PREPARE = """
import pathlib, sys
rows, table, text = sys.argv[1:]
pathlib.Path(table).write_text(text)
pathlib.Path(rows).write_text(f"{len(text.splitlines())}\\n")
"""
COPY = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(sys.argv[1])"
OUTPUTS = {"rows": "number", "table": "text/csv"}


def run_in_process(arguments: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Run the step program in this process, and return its exit code and output."""
    handler, output = signal.getsignal(signal.SIGTERM), io.StringIO()
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.dict(os.environ, env),
        contextlib.redirect_stdout(output),
        pytest.raises(SystemExit) as caught,
    ):
        main()
    signal.signal(signal.SIGTERM, handler)
    return int(caught.value.code or 0), output.getvalue()


class Claim:
    """A directory that represents a checkpoint claim with the directories of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(
        self,
        run: str,
        name: str,
        program: str,
        *arguments: str,
        outputs: dict[str, str] | None = None,
        inputs: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> list[str]:
        return [
            *(sys.executable, "-m", "workload.step", f"--run={self.folder / run}"),
            f"--name={name}",
            *(f"--output={key}={type_}" for key, type_ in (outputs or {}).items()),
            *(f"--input={key}={reference}" for key, reference in (inputs or {}).items()),
            *options,
            *("--", sys.executable, "-c", program, *arguments),
        ]

    def step(
        self, run: str, name: str, program: str, *arguments: str, **kwargs: Any
    ) -> dict[str, Any]:
        """Run a step and return its last event, with its exit code as `code`.

        A step without outputs replaces the current process, so the step runs in a subprocess.
        """
        env = {**os.environ, **kwargs.pop("env", {})}
        command = self.command(run, name, program, *arguments, **kwargs)
        if kwargs.get("outputs"):
            code, output = run_in_process(command[2:], env)
        else:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            code, output = done.returncode, done.stdout
        return {"code": code, **json.loads((output.splitlines() or ["{}"])[-1])}

    def prepare(self, run: str, text: str = "a\nb\n", **kwargs: Any) -> dict[str, Any]:
        """Run a step that writes a table and its number of rows."""
        arguments = ("$(outputs.rows)", "$(outputs.table)", text)
        return self.step(run, "prepare", PREPARE, *arguments, outputs=OUTPUTS, **kwargs)

    def read(self, run: str, reference: str) -> dict[str, Any]:
        """Run a step that copies the referenced input to its output."""
        arguments = ("$(inputs.x)", "$(outputs.y)")
        return self.step(
            run, "read", COPY, *arguments, inputs={"x": reference}, outputs={"y": "text"}
        )

    def results(self) -> list[Path]:
        return sorted(path for path in (self.folder / RESULTS_DIRECTORY).iterdir())


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    return Claim(tmp_path)


def test_result_contains_typed_parameters_and_artifact_digests(claim: Claim) -> None:
    event = claim.prepare("job-1", options=("--image=sha256:1",))
    assert (event["code"], event["event"], event["run"]) == (0, "step_succeeded", "job-1")
    (folder,) = claim.results()
    manifest = StepManifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert manifest.parameters == {"rows": 2}
    assert manifest.image == "sha256:1"
    table = manifest.artifacts["table"]
    assert (table.media_type, table.size) == ("text/csv", 4)
    assert event["artifacts"] == {"table": table.sha256}
    assert (folder / table.file).read_text() == "a\nb\n"


def test_later_step_receives_parameter_values_and_artifact_paths(claim: Claim) -> None:
    claim.prepare("job-1")
    assert claim.read("job-1", "prepare.rows")["parameters"] == {"y": "2"}
    path = Path(claim.read("job-1", "prepare.table")["parameters"]["y"])
    assert path.read_text() == "a\nb\n"


def test_inputs_are_substituted_in_the_environment_of_steps_without_outputs(claim: Claim) -> None:
    claim.prepare("job-1")
    program = "import os; print('{\"rows\": ' + os.environ['ROWS'] + '}')"
    event = claim.step(
        "job-1",
        "train",
        program,
        inputs={"rows": "prepare.rows"},
        env={"ROWS": "$(inputs.rows)"},
    )
    assert event == {"code": 0, "rows": 2}


@pytest.mark.parametrize(
    ("type_", "items", "values"),
    [
        ("text", ("clean", "noisy"), ["clean", "noisy"]),
        ("text", ("1.10", "NaN"), ["1.10", "NaN"]),
        ("number", ("1.5", "2"), [1.5, 2]),
        ("boolean", ("true", "false"), [True, False]),
    ],
)
def test_outputs_of_a_fan_out_are_passed_as_a_list(
    claim: Claim, type_: str, items: tuple[str, ...], values: list[object]
) -> None:
    for index, item in enumerate(items):
        claim.step(
            "job-1", f"check-{index}", COPY, item, "$(outputs.name)", outputs={"name": type_}
        )
    parameter = claim.read("job-1", "[check-0.name,check-1.name]")["parameters"]["y"]
    assert json.loads(parameter) == values


@pytest.fixture
def trained(claim: Claim) -> Path:
    """Return the export of a run."""
    export = claim.folder / "job-1" / "export"
    export.mkdir(parents=True)
    (export / "model.safetensors").write_bytes(b"w")
    manifest = Manifest(
        model="digits-net",
        input_shape=(1, 8, 8),
        classes=("0", "1"),
        metrics={"accuracy": 0.95},
        weights=Weights(
            size=1, sha256="50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326"
        ),
        torch_version="2.15.0",
    )
    write_manifest(export, manifest)
    return export


def test_export_and_metrics_are_outputs_of_the_training_step(claim: Claim, trained: Path) -> None:
    assert TRAINING == TRAINING_STEP
    assert claim.read("job-1", "train.accuracy")["parameters"] == {"y": "0.95"}
    assert claim.read("job-1", "train.export")["parameters"] == {"y": str(trained)}


def test_step_with_an_existing_result_is_skipped_and_reports_the_original_run(claim: Claim) -> None:
    first = claim.prepare("job-1")
    second = claim.prepare("job-2")
    assert (second["code"], second["event"]) == (0, "step_reused")
    assert (second["run"], second["result"]) == ("job-1", first["result"])
    assert len(claim.results()) == 1
    assert claim.read("job-2", "prepare.rows")["parameters"] == {"y": "2"}


@pytest.mark.parametrize(
    "change",
    [
        {"text": "a\n"},
        {"options": ("--image=sha256:2",)},
        {"options": ("--env=A",), "env": {"A": "2"}},
        {"options": ("--no-cache",)},
    ],
    ids=["command", "image", "variable", "cache"],
)
def test_a_changed_step_runs_again(claim: Claim, change: dict[str, Any]) -> None:
    unchanged = {"options": ("--env=A",), "env": {"A": "1"}} if "env" in change else {}
    first = claim.prepare("job-1", **unchanged)
    second = claim.prepare("job-2", **change)
    assert (second["event"], second["run"]) == ("step_succeeded", "job-2")
    assert second["result"] != first["result"]


def test_step_with_caching_disabled_runs_once_in_each_run(claim: Claim) -> None:
    claim.prepare("job-1", options=("--no-cache",))
    assert claim.prepare("job-1", options=("--no-cache",))["event"] == "step_reused"
    assert claim.prepare("job-2", options=("--no-cache",))["event"] == "step_succeeded"


def test_step_runs_again_only_if_its_inputs_have_changed(claim: Claim, trained: Path) -> None:
    def score(run: str) -> str:
        arguments = ("1", "$(outputs.score)", "$(inputs.table)")
        event = claim.step(
            run,
            "score",
            COPY,
            *arguments,
            inputs={"table": "prepare.table"},
            outputs={"score": "number"},
        )
        return str(event["event"])

    claim.prepare("job-1")
    assert score("job-1") == "step_succeeded"
    # A different image produces the same table.
    claim.prepare("job-2", options=("--image=sha256:2",))
    assert score("job-2") == "step_reused"
    claim.prepare("job-3", text="other")
    assert score("job-3") == "step_succeeded"
    # The training of another run has produced the same weights.
    shutil.copytree(trained, claim.folder / "job-2" / "export")
    claim.read("job-1", "train.accuracy")
    assert claim.read("job-2", "train.accuracy")["event"] == "step_reused"


def test_elements_of_a_fan_out_are_reused_individually(claim: Claim) -> None:
    def check(run: str, index: int, item: str) -> str:
        outputs = {"name": "text"}
        event = claim.step(run, f"check-{index}", COPY, item, "$(outputs.name)", outputs=outputs)
        return str(event["event"])

    assert [check("job-1", i, item) for i, item in enumerate("ab")] == ["step_succeeded"] * 2
    assert [check("job-2", i, item) for i, item in enumerate("xab")] == [
        "step_succeeded",
        "step_reused",
        "step_reused",
    ]


def test_incomplete_result_is_ignored_and_removed(claim: Claim) -> None:
    wait = PREPARE + "\nimport time; print('{}', flush=True); time.sleep(60)"
    arguments = ("$(outputs.rows)", "$(outputs.table)", "a\nb\n")
    command = claim.command("job-1", "prepare", wait, *arguments, outputs=OUTPUTS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "{}\n"
        process.kill()
    (partial,) = claim.results()
    assert partial.name.startswith(".")
    assert claim.read("job-1", "prepare.rows")["code"] == exit_codes.BAD_INPUT
    # The restarted pod runs the same step again.
    without_sleep = wait.replace("time.sleep(60)", "pass")
    assert without_sleep != wait
    command = claim.command("job-1", "prepare", wait, *arguments, outputs=OUTPUTS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "{}\n"
        assert len(claim.results()) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    assert claim.results() == []


def test_damaged_artifact_is_rejected_and_re_created(claim: Claim) -> None:
    claim.prepare("job-1")
    (folder,) = claim.results()
    (folder / "table").write_text("x\nb\n")
    rejected = claim.read("job-1", "prepare.table")
    assert rejected["code"] == exit_codes.BAD_INPUT
    assert "has sha256" in rejected["error"]
    assert claim.prepare("job-2")["event"] == "step_succeeded"
    assert (folder / "table").read_text() == "a\nb\n"
    assert claim.results() == [folder]


@pytest.mark.parametrize("method", ["read_bytes", "open"])
def test_step_fails_temporarily_while_results_cannot_be_read(
    claim: Claim, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim.prepare("job-1")
    (folder,) = claim.results()
    inode = folder.stat().st_ino
    readable = getattr(Path, method)

    def read(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent == folder and arguments[:1] in ((), ("rb",)):
            raise OSError(errno.EIO, "Input/output error")
        return readable(path, *arguments, **options)

    with monkeypatch.context() as unavailable:
        unavailable.setattr(Path, method, read)
        assert claim.prepare("job-2")["code"] == exit_codes.FAILED
        event = claim.read("job-1", "prepare.table")
    assert event["code"] == exit_codes.FAILED
    assert event["error"].endswith("cannot be read: Input/output error")
    assert claim.prepare("job-2")["event"] == "step_reused"
    assert folder.stat().st_ino == inode


@pytest.mark.parametrize(
    ("type_", "content", "message"),
    [
        ("number", "many", "'many', but has type number: write a number such as 0.25"),
        ("number", "true", "'true', but has type number"),
        ("number", "NaN", "'NaN', but has type number"),
        pytest.param("number", "[" * 20_000, "but has type number", id="nested too deeply"),
        ("boolean", "1", "'1', but has type boolean: write true or false"),
        ("text/csv", "", "is empty: an artifact must have content"),
        ("text", "a\0b", "contains a null character"),
        ("text", "x" * 40_000, "more than 32768 bytes: declare it as an artifact"),
    ],
)
def test_output_that_does_not_match_its_type_is_rejected(
    tmp_path: Path, type_: str, content: str, message: str
) -> None:
    (tmp_path / "y").write_text(content)
    with pytest.raises(ValueError, match=message):
        collect(tmp_path, {"y": type_})


@pytest.mark.parametrize(
    ("type_", "content", "value"),
    [
        ("number", "3", 3),
        ("number", "-0.5\n", -0.5),
        ("boolean", "true\n", True),
        ("text", "3\n", "3"),
    ],
)
def test_parameter_value_has_the_declared_type(
    tmp_path: Path, type_: str, content: str, value: object
) -> None:
    (tmp_path / "y").write_text(content)
    (parsed,) = collect(tmp_path, {"y": type_})[0].values()
    assert (parsed, type(parsed)) == (value, type(value))


def test_missing_output_is_a_permanent_failure(claim: Claim) -> None:
    event = claim.step("job-1", "x", "pass", outputs={"y": "text"})
    assert event["code"] == exit_codes.BAD_INPUT
    assert "the command must write a file to $(outputs.y)" in event["error"]
    assert claim.results() == []


def test_symbolic_link_is_not_accepted_as_an_artifact(claim: Claim) -> None:
    program = "import os, sys; os.symlink('/etc/hostname', sys.argv[1])"
    event = claim.step("job-1", "x", program, "$(outputs.y)", outputs={"y": "text/plain"})
    assert event["code"] == exit_codes.BAD_INPUT


def test_failed_command_leaves_no_result(claim: Claim) -> None:
    event = claim.step("job-1", "x", "raise SystemExit(7)", outputs={"y": "text"})
    assert event["code"] == 7
    assert claim.results() == []


@pytest.mark.parametrize("options", [[], ["--output=y=text"]])
@pytest.mark.parametrize("text", [None, "exit 0", "#!/no/such"])
def test_command_that_cannot_be_executed_is_a_permanent_failure(
    claim: Claim, options: list[str], text: str | None
) -> None:
    program = str(claim.folder / "program")
    if text is not None:
        Path(program).write_text(text)
        Path(program).chmod(0o755)
    module = ["workload.step", f"--run={claim.folder / 'job-1'}", "--name=x", *options]
    code, output = run_in_process([*module, "--", program], dict(os.environ))
    assert code == exit_codes.BAD_INPUT
    assert program in json.loads(output)["error"]
    assert not list(claim.folder.glob(f"{RESULTS_DIRECTORY}/*"))
    assert not list(claim.folder.glob(f"{RESULTS_DIRECTORY}/.*"))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("prepare.columns", "no output 'columns'; its outputs: rows, table"),
        ("other.rows", "contains no result of step other"),
        ("train.f1", "the export has no metric 'f1'; its metrics: accuracy"),
    ],
)
def test_missing_input_is_a_permanent_failure(
    claim: Claim, trained: Path, reference: str, message: str
) -> None:
    assert trained.exists()
    claim.prepare("job-1")
    event = claim.read("job-1", reference)
    assert event["code"] == exit_codes.BAD_INPUT
    assert message in event["error"]


def test_concurrent_runs_of_the_same_step_share_one_result(claim: Claim) -> None:
    def command(run: str) -> list[str]:
        arguments = ("$(outputs.rows)", "$(outputs.table)", "a\nb\n")
        return claim.command(run, "prepare", PREPARE, *arguments, outputs=OUTPUTS)

    runs = [f"job-{number}" for number in range(4)]
    started = [subprocess.Popen(command(run), stdout=subprocess.DEVNULL) for run in runs]
    assert [process.wait(60) for process in started] == [0] * 4
    assert len(claim.results()) == 1
    assert {claim.read(run, "prepare.rows")["parameters"]["y"] for run in runs} == {"2"}


def test_identical_concurrent_steps_of_a_run_share_one_result(claim: Claim) -> None:
    wait = f"print({{}}, flush=True); input(); {PREPARE}"
    arguments = ("$(outputs.rows)", "$(outputs.table)", "a\n")
    with contextlib.ExitStack() as stack:
        processes = []
        for name in ("first", "second"):
            command = claim.command("job-1", name, wait, *arguments, outputs=OUTPUTS)
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            processes.append(stack.enter_context(process))
            assert process.stdout is not None
            assert process.stdout.readline() == "{}\n"
        for process in processes:
            output, _ = process.communicate("\n")
            assert (process.returncode, json.loads(output)["event"]) == (0, "step_succeeded")
    assert len(claim.results()) == 1


def test_sigterm_during_the_start_of_a_command_ends_it(claim: Claim) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    command = claim.command("job-1", "prepare", "import time; time.sleep(60)", outputs=OUTPUTS)
    with mock.patch("subprocess.Popen", Interrupted):
        code, _ = run_in_process(command[2:], {})
    assert code == 128 + signal.SIGTERM


def test_terminated_step_without_outputs_may_be_restarted(claim: Claim) -> None:
    """A program that handles SIGTERM may exit with code 0, for example when its pod is evicted."""
    stop = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print({}, flush=True)
while True:
    time.sleep(0.1)  # a signal just before a longer sleep would be handled only after the sleep
"""
    command = claim.command("job-1", "prepare", stop, outputs=OUTPUTS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "{}\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == exit_codes.INTERRUPTED
    assert "output 'rows' is missing" in json.loads(output)["error"]
    assert claim.results() == []


def test_output_on_unavailable_storage_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows").write_text("3")
    make_unavailable(tmp_path / "rows", monkeypatch)
    with pytest.raises(OSError, match="Stale file handle"):
        collect(tmp_path, OUTPUTS)
