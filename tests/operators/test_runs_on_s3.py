"""Training programs with a data set and checkpoints in a real object store."""

import json
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from inference.fetch import fetch
from tests.operators.object_store import bucket, versitygw
from tests.stores import ACCESS, proxy
from tests.training.programs import SLOWLY, Program, arguments, digest, start_gang
from training.data.__main__ import main as prepare
from workload import exit_codes

__all__ = ["bucket", "versitygw"]

SAVING = ["--checkpoint-steps=6", "--keep-checkpoints=2"]


@pytest.fixture
def environment(bucket: Path) -> dict[str, str]:
    """Credentials and address of the store, as set in a pod."""
    return {**ACCESS, "AWS_ENDPOINT_URL": f"http://{address(bucket)}"}


def address(bucket: Path) -> str:
    return f"127.0.0.1:{bucket.name.rpartition('-')[2]}"


def gang(
    bucket: Path, environment: Mapping[str, str], run_dir: Path, output: Path, *more: str
) -> list[Program]:
    url = f"--run-url=s3://{bucket.name}/runs"
    flags = arguments(run_dir, url, *SAVING, *more)
    return start_gang(flags, 2, output, environment=environment)


def codes(programs: list[Program]) -> list[int]:
    return [program.exit_code() for program in programs]


def sealed_files(bucket: Path) -> dict[str, bytes]:
    """Return the contents of the files of sealed checkpoints in the store, by path."""
    runs = bucket / "runs"
    return {
        str(path.relative_to(runs)): path.read_bytes()
        for seal in runs.rglob("checkpoint.json")
        for path in seal.parent.iterdir()
    }


@pytest.fixture(scope="module")
def undisturbed_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights digest of the same run without an object store and interruptions."""
    folder = tmp_path_factory.mktemp("whole")
    assert codes(start_gang(arguments(folder / "run", *SAVING), 2, folder)) == [0, 0]
    return digest(folder / "run")


def test_run_killed_during_an_upload_resumes_from_the_last_complete_copy(
    bucket: Path, environment: dict[str, str], undisturbed_digest: str, tmp_path: Path
) -> None:
    hanging, released = threading.Event(), threading.Event()
    sent: set[str] = set()

    def fault(method: str, path: str) -> int | None:
        """Hold the second file of the checkpoint after step 18."""
        if method == "PUT" and "step-00000018/" in path:
            sent.add(path.partition("?")[0])
        if len(sent) > 1:
            hanging.set()
            released.wait()
            return 500
        return None

    with proxy(address(bucket), fault) as url:
        through = environment | {"AWS_ENDPOINT_URL": url}
        killed = gang(bucket, through, tmp_path / "run", tmp_path / "a", SLOWLY)
        assert hanging.wait(120), killed[0].text
        for program in killed:
            program.signal(signal.SIGKILL)
        codes(killed)
        released.set()
    assert any((bucket / "runs/run/checkpoints/step-00000018").iterdir())
    copies = sealed_files(bucket)
    newest = max(Path(name).parent.name for name in copies)
    assert "step-00000000" < newest < "step-00000018"
    shutil.rmtree(tmp_path / "run")
    resumed = gang(bucket, environment, tmp_path / "run", tmp_path / "b", "--keep-checkpoints=9")
    assert codes(resumed) == [0, 0]
    restored = tmp_path / "run/checkpoints" / newest
    local = {f"run/checkpoints/{newest}/{path.name}": path for path in restored.iterdir()}
    copied = {name: each for name, each in copies.items() if f"/{newest}/" in name}
    without_seal = local.keys() - {f"run/checkpoints/{newest}/checkpoint.json"}
    assert local.keys() == copied.keys()
    assert all(local[name].read_bytes() == copied[name] for name in without_seal)
    events = [json.loads(line) for line in resumed[0].text.splitlines() if line.startswith("{")]
    assert (
        next(event["step"] for event in events if event["event"] == "step") == int(newest[5:]) + 1
    )
    assert digest(tmp_path / "run") == undisturbed_digest
    fetched = fetch_with(environment, f"s3://{bucket.name}/runs/run/export", tmp_path / "export")
    assert fetched == undisturbed_digest


def fetch_with(environment: Mapping[str, str], url: str, folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return fetch(url, folder).weights.sha256


def test_interrupted_run_resumes_on_another_disk(
    bucket: Path, environment: dict[str, str], undisturbed_digest: str, tmp_path: Path
) -> None:
    first = gang(bucket, environment, tmp_path / "run", tmp_path / "a", SLOWLY)
    first[0].await_output('"step": 9')
    for program in first:
        program.signal(signal.SIGTERM)
    assert codes(first) == [exit_codes.INTERRUPTED] * 2
    shutil.rmtree(tmp_path / "run")
    second = gang(bucket, environment, tmp_path / "run", tmp_path / "b")
    assert codes(second) == [0, 0]
    assert '"event": "resume"' in second[0].text
    assert digest(tmp_path / "run") == undisturbed_digest


def test_training_continues_during_store_failures_and_uploads_catch_up(
    bucket: Path, environment: dict[str, str], undisturbed_digest: str, tmp_path: Path
) -> None:
    failed: list[str] = []

    def fault(method: str, path: str) -> int | None:
        """Reject the checkpoint after step 6, and fail some of all other requests."""
        failed.append(path)
        if method == "PUT" and "step-00000006/" in path:
            return 403
        return 503 if len(failed) % 5 == 0 else None

    with proxy(address(bucket), fault) as url:
        through = environment | {"AWS_ENDPOINT_URL": url}
        programs = gang(bucket, through, tmp_path / "run", tmp_path / "a")
        assert codes(programs) == [0, 0]
    assert digest(tmp_path / "run") == undisturbed_digest
    assert "run/checkpoints/step-00000032/checkpoint.json" in sealed_files(bucket)
    assert "the newest checkpoint could not be copied" in programs[0].text


def test_run_fails_immediately_with_wrong_keys_and_does_not_log_them(
    bucket: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    wrong = environment | {"AWS_SECRET_ACCESS_KEY": "battery-staple"}
    programs = gang(bucket, wrong, tmp_path / "run", tmp_path / "a")
    assert codes(programs) == [exit_codes.FAILED] * 2
    assert f"s3://{bucket.name}/runs/run: .probe cannot be written" in programs[0].text
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"battery-staple" in each for each in written)


@pytest.fixture
def books(bucket: Path, tmp_path: Path) -> str:
    """The URL of a prepared data set of tokens in the store."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(3):
        (text / f"{number}.txt").write_text(f"Chapter {number}. " * 400)
    assert prepare(["prepare", "text", f"--folder={text}", str(tmp_path / "tokens")]) == 0
    shutil.copytree(tmp_path / "tokens", bucket / "books")
    return f"s3://{bucket.name}/books"


GPT = ["--model=gpt", '--model-options={"layers": 1, "width": 32, "heads": 2, "context": 32}']
GPT += ["--dataset=tokens", "--train-steps=3", "--batch-size=4"]


def test_data_set_is_downloaded_verified_and_cached(
    books: str, bucket: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    def train(name: str) -> Program:
        flags = [*GPT, f"--run-dir={tmp_path / name}", f"--data-url={books}"]
        flags += [f"--data-dir={tmp_path / 'data'}"]
        programs = start_gang(flags, 2, tmp_path / f"{name}-output", environment=environment)
        assert len({*codes(programs)}) == 1
        return programs[0]

    assert train("first").exit_code() == exit_codes.DONE
    local = {path.name: path.read_bytes() for path in (tmp_path / "data/tokens").iterdir()}
    assert local == {path.name: path.read_bytes() for path in (tmp_path / "tokens").iterdir()}
    part = next((bucket / "books").glob("train-*.bin"))
    part.write_bytes(part.read_bytes()[:-2])
    assert train("second").exit_code() == exit_codes.DONE
    shutil.rmtree(tmp_path / "data")
    refused = train("third")
    assert refused.exit_code() == exit_codes.BAD_INPUT
    assert f"{books}/{part.name} is damaged: it has" in refused.text
