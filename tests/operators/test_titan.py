"""torchtitan in a separate environment: options, errors, interruption, resuming, resharding."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infra.settings.training.torchtitan import TorchtitanSettings, released
from tests.engine.processes.test_frameworks import ROOT, Launched
from tests.training.programs import until
from tools.environments import environment
from tools.generate.configuration import TITAN_PINS, TITAN_SCHEMA, new_titan_schema
from workload import exit_codes

SMALL = {
    "training": {"seq_len": 64, "local_batch_size": 2, "steps": 14},
    "checkpoint": {"interval": 4, "keep_latest_k": 3},
    "metrics": {"log_freq": 1},
    "debug": {"seed": 7},
}
TENSOR = {"tensor_parallel_degree": 2}
"""Tensor parallelism over two ranks, with the parameters sharded in halves (FSDP2)."""


@pytest.fixture(scope="module")
def python() -> str:
    return str(environment("torchtitan", inherits=True))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a tokenizer, laid out as on a claim."""
    folder = tmp_path_factory.mktemp("inputs")
    words = ["train", "model", "gang", "queue", "node", "step", "loss", "save", "load"]
    texts = [" ".join(words[i * j % len(words)] for j in range(1, 200)) for i in range(1, 200)]
    (folder / "data").mkdir()
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    (folder / "data/train.json").write_text(lines)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special)
    )
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    ends = dict(zip(("bos_token", "eos_token"), special, strict=True))
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(ends))
    (folder / "tokenizer/chat_template.jinja").write_text("{{ messages }}")
    return folder


class Runs:
    """Runs of four processes each, with arguments built from a job's settings."""

    def __init__(self, python: str, inputs: Path, folder: Path) -> None:
        self.python, self.inputs, self.folder = python, inputs, folder
        self.started: list[Launched] = []

    def start(self, name: str, parallelism: dict[str, Any], **more: dict[str, Any]) -> Launched:
        settings = TorchtitanSettings(
            module="llama3",
            config="llama3_debugmodel",
            options={
                **SMALL,
                "parallelism": parallelism,
                "hf_assets_path": str(self.inputs / "tokenizer"),
                "dataloader": {"dataset_path": str(self.inputs / "data")},
                **more,
            },
        )
        assert settings.size_problem(4) is None
        command = [self.python, "-m", "training.launch", "--standalone", "--nproc-per-node=4"]
        output = self.folder / f"{name}-{len(self.started)}.txt"
        variables = {"RUN_DIR": str(self.folder / name), "PYTHONPATH": str(ROOT)}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, "-m", "training.titan", *settings.to_args()],
                env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Launched(process, output))
        return self.started[-1]

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        (file,) = (self.folder / name / "export/huggingface").glob("*.safetensors")
        return load_file(file)

    def manifest(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / name / "export/manifest.json").read_text()))


@pytest.fixture
def runs(python: str, inputs: Path, tmp_path: Path) -> Iterator[Runs]:
    found = Runs(python, inputs, tmp_path)
    yield found
    for gang in found.started:
        gang.end()


def test_schema_of_options_matches_the_pinned_version() -> None:
    pins = hashlib.sha256(TITAN_PINS.read_bytes()).hexdigest()
    assert new_titan_schema(pins) == TITAN_SCHEMA.read_text()


def test_torchtitan_accepts_every_option_that_the_settings_accept(python: str) -> None:
    def sample(schema: dict[str, Any]) -> Any:
        if "$ref" in schema:
            parts = released()["$defs"][schema["$ref"].removeprefix("#/$defs/")]["properties"]
            return {name: sample(part) for name, part in parts.items()}
        schema = schema.get("anyOf", [schema])[0]
        if "const" in schema:
            return schema["const"]
        plain = {"integer": 8, "number": 0.5, "boolean": False, "array": ["one", "two"]}
        return schema["enum"][0] if "enum" in schema else plain.get(schema["type"], "text")

    commands = []
    for module, configs in released()["modules"].items():
        for config, schema in configs.items():
            options = sample({"$ref": schema["$ref"]})
            # Values of these options depend on each other.
            options["checkpoint"] = {"interval": 3}
            options["parallelism"] = {"fsdp_reshard_after_forward": "never"}
            options["training"]["disable_cuda_graphs"] = True
            options["debug"] = {"seed": 3}
            settings = TorchtitanSettings(module=module, config=config, options=options)
            commands.append(settings.to_args())
    program = (
        "import json, sys; from training.titan.without_gpu import use_cpu; use_cpu()\n"
        "from torchtitan.tools import utils; utils.has_cuda_capability = lambda *_: True\n"
        "from torchtitan.config import ConfigManager\n"
        "for line in sys.stdin:\n"
        "    config = ConfigManager().parse_args(json.loads(line))\n"
        "    assert config.training.steps == 8 and config.checkpoint.interval == 3\n"
    )
    ended = subprocess.run(
        [python, "-c", program],
        input="\n".join(map(json.dumps, commands)),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def test_invalid_setting_exits_with_a_code_that_is_not_retried(runs: Runs) -> None:
    gang = runs.start("mistake", TENSOR, training={"seq_len": 63, "steps": 2})
    assert gang.exit_code() == exit_codes.BAD_INPUT
    assert "must be divisible by 2" in gang.text


def test_export_fails_if_the_tokenizer_cannot_be_listed(python: str, tmp_path: Path) -> None:
    for name in ("written/huggingface", "assets", "export"):
        (tmp_path / name).mkdir(parents=True)
    program = (
        "import errno, os, sys; from pathlib import Path\n"
        "from training.titan.__main__ import collect\n"
        "written, assets, export = map(Path, sys.argv[1:])\n"
        "def fail(at): raise PermissionError(errno.ESTALE, 'Stale file handle')\n"
        "for name in ('listdir', 'scandir'):\n"
        "    others = getattr(os, name)\n"
        "    choose = lambda at, others=others: (fail if Path(at) == assets else others)(at)\n"
        "    setattr(os, name, choose)\n"
        "collect(written, assets, export)\n"
    )
    ended = subprocess.run(
        [python, "-c", program, *(tmp_path / name for name in ("written", "assets", "export"))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "Stale file handle" in ended.stderr


def test_loss_of_a_pipeline_is_that_of_its_last_stage(runs: Runs) -> None:
    training = {**SMALL["training"], "steps": 1, "disable_cuda_graphs": True}
    gang = runs.start("pipeline", {**TENSOR, "pipeline_parallel_degree": 2}, training=training)
    assert gang.exit_code() == exit_codes.DONE, gang.text
    assert 5 < runs.manifest("pipeline")["metrics"]["loss"] < 12


def test_stopped_and_killed_run_ends_with_the_weights_of_an_undisturbed_run(runs: Runs) -> None:
    undisturbed = runs.start("undisturbed", TENSOR)
    assert undisturbed.exit_code() == exit_codes.DONE, undisturbed.text
    gang = runs.start("disturbed", TENSOR)
    until(lambda: '"step": 5' in gang.text)
    gang.stop()
    assert gang.exit_code() == exit_codes.INTERRUPTED, gang.text
    assert '"event": "interrupted"' in gang.text
    shutil.copytree(runs.folder / "disturbed", runs.folder / "resharded")
    gang = runs.start("disturbed", TENSOR)
    until(lambda: '"step": 9,' in gang.text)
    gang.kill_one()
    assert gang.exit_code() not in (exit_codes.DONE, exit_codes.INTERRUPTED)
    gang = runs.start("disturbed", TENSOR)
    assert gang.exit_code() == exit_codes.DONE, gang.text
    assert '"event": "resume"' in gang.text
    assert '"step": 8' in gang.text
    # Replicate the parameters instead of sharding them. The product of the two degrees stays the
    # same, so the order of the data does not change.
    replicas = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1}
    # Of the remaining steps, torchtitan itself would log none.
    rarely = {"metrics": {"log_freq": 100}}
    resharded = runs.start("resharded", {**TENSOR, **replicas}, **rarely)
    assert resharded.exit_code() == exit_codes.DONE, resharded.text

    expected, found = runs.weights("undisturbed"), runs.weights("disturbed")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(found[name], weights), name
    for name, weights in runs.weights("resharded").items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-3, atol=1e-4, msg=name)
    export = runs.folder / "disturbed/export"
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert tokenizer <= {path.name for path in (export / "huggingface").iterdir()}
    assert runs.manifest("disturbed")["torchtitan"] == {"module": "llama3", "flavor": "debugmodel"}
    loss = runs.manifest("disturbed")["metrics"]["loss"]
    assert loss < 6.5
    assert runs.manifest("resharded")["metrics"]["loss"] == pytest.approx(loss, abs=1e-2)
    # A finished run exits immediately without training.
    again = runs.start("disturbed", TENSOR)
    assert again.exit_code() == exit_codes.DONE
    assert '"already": true' in again.text
    # A run that was killed during its export only repeats the export.
    shutil.rmtree(export)
    again = runs.start("disturbed", TENSOR)
    assert again.exit_code() == exit_codes.DONE, again.text
    assert runs.manifest("disturbed")["metrics"] == {"loss": loss}
