"""The fine-tune example: an interrupted run of two processes, and runs of a single process.

All runs are forks of one process, since diffusers takes seconds to import. The cluster tier starts
the example through accelerate, as users do.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from examples.diffusion import __main__ as program
from workload import exit_codes

RUNS = """
import json, os, signal, socket, sys, time, torch
from pathlib import Path
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file
from workload.configuration import ConfigurationError
from examples.diffusion import __main__ as program
from examples.diffusion import finetune as example
from examples.diffusion.__main__ import parser

torch.set_num_threads(1)
folder, results = Path(sys.argv[1]), {}

def run(name, *flags):
    AcceleratorState._reset_state(True)
    try:
        return example.finetune(parser().parse_args([f"--run-dir={folder / name}", *flags]))
    except ConfigurationError as error:
        return str(error)

def weights(name):
    return load_file(folder / name / "export/unet/diffusion_pytorch_model.safetensors")

def rank(number, port):
    gang = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({**gang, "LOCAL_WORLD_SIZE": "2", **address})
    with (folder / f"rank-{number}").open("wb") as output:
        os.dup2(output.fileno(), 1)
    sys.argv = ["diffusion", f"--run-dir={folder / 'two'}", "--steps=60", "--log-every=1"]
    code = 1
    try:
        code = program.main()
    finally:
        sys.stdout.flush()
        os._exit(code)

def interrupted_gang():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    gang = []
    for number in range(2):
        gang.append(os.fork())
        if gang[-1] == 0:
            rank(number, port)
    leader = folder / "rank-0"
    while not leader.exists() or '"step": 30,' not in leader.read_text():
        if os.waitpid(-1, os.WNOHANG)[0]:
            sys.exit("one of the two processes ended early")
        time.sleep(0.005)
    for pid in gang:
        os.kill(pid, signal.SIGTERM)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in gang]

results["codes of two"] = interrupted_gang()
results["of two"] = run("two", "--steps=60")
steps = ["--steps=6", "--checkpoint-every=2"]
results["whole"] = run("whole", *steps)

step = example.train_step
def interrupted(*arguments):
    interrupted.count += 1
    if interrupted.count == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(*arguments)
interrupted.count = 0
example.train_step = interrupted
results["interrupted"] = run("parts", *steps)
results["kept"] = [path.name for path in (folder / "parts/checkpoints").iterdir()]
example.train_step = step
results["continued"] = run("parts", *steps)
results["same"] = all(torch.equal(weights("whole")[k], v) for k, v in weights("parts").items())

results["fine-tuned"] = run("tuned", f"--unet={folder}/whole/export/unet", *steps)
results["no unet"] = run("none", f"--unet={folder}/nowhere", *steps)
from diffusers import UNet2DConditionModel
UNet2DConditionModel(
    sample_size=8, block_out_channels=(8, 8), norm_num_groups=8, cross_attention_dim=8,
    down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    layers_per_block=1,
).save_pretrained(folder / "old-style")
results["old"] = run("old", f"--unet={folder}/old-style", *steps)
newest = folder / "tuned/checkpoints/step-00000006/model.safetensors"
newest.write_bytes(newest.read_bytes()[:1000])
results["truncated"] = run("tuned", *steps)
results["diverged"] = run("diverged", "--learning-rate=1e30", "--log-every=1", "--steps=30")
(folder / "results.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diffusion")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", RUNS, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return dict(json.loads((folder / "results.json").read_text()))


def test_two_interrupted_accelerate_processes_have_learned(
    results: dict[str, Any], folder: Path
) -> None:
    events = [json.loads(line) for line in (folder / "rank-0").read_text().splitlines()]
    assert results["codes of two"] == [exit_codes.INTERRUPTED] * 2
    assert (events[0]["event"], events[-1]["event"]) == ("start", "interrupted")
    assert events[0]["processes"] == 2
    losses = [line["loss"] for line in events[1:-1]]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_single_process_finishes_the_run_of_two_processes(
    results: dict[str, Any], folder: Path
) -> None:
    assert results["of two"] == 0
    assert (folder / "two" / "export" / "unet" / "diffusion_pytorch_model.safetensors").is_file()


def test_interrupted_run_ends_with_the_weights_of_an_uninterrupted_run(
    results: dict[str, Any],
) -> None:
    assert (results["whole"], results["interrupted"], results["continued"]) == (0, 75, 0)
    assert results["kept"] == ["step-00000003"]
    assert results["same"] is True


def test_saved_unet_is_fine_tuned_and_other_models_are_rejected(results: dict[str, Any]) -> None:
    assert results["fine-tuned"] == 0
    assert "is not a UNet saved by diffusers" in results["no unet"]
    assert "addition_embed_type None" in results["old"]


def test_a_truncated_checkpoint_and_a_nan_loss_are_reported(
    results: dict[str, Any],
) -> None:
    assert "cannot resume from" in results["truncated"]
    assert "lower --learning-rate" in results["diverged"]


@pytest.mark.parametrize("listed", [True, False])
def test_a_checkpoint_that_cannot_be_read_at_the_moment_is_neither_ignored_nor_damaged(
    listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.diffusion.finetune import resume

    (tmp_path / "checkpoints/step-00000003").mkdir(parents=True)
    fail = Mock(side_effect=PermissionError(errno.ESTALE, "Stale file handle"))
    if not listed:
        for name in ("listdir", "scandir"):
            monkeypatch.setattr(os, name, fail)
    with pytest.raises(PermissionError):
        resume(Mock(load_state=fail), tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps=0"], "argument --steps: invalid positive value: '0'"),
        (["--step=1"], "unrecognized arguments: --step=1"),
        (["--run-dir=/dev/null/run"], "run_dir /dev/null/run cannot be written"),
    ],
)
def test_invalid_arguments_exit_with_64_and_a_single_line(
    tmp_path: Path,
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["diffusion", f"--run-dir={tmp_path}", *flags])
    assert program.main() == exit_codes.BAD_INPUT
    [line] = capsys.readouterr().out.splitlines()
    events = json.loads(line)
    assert events["exit_code"] == exit_codes.BAD_INPUT
    assert message in events["message"]
