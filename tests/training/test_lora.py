"""LoRA adapters: training compared with a plain loop, merging, and exchange with PEFT."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call

from tests.training import reference
from tests.training.programs import kill, run_with, start_gang, until
from tools.environments import environment
from training.config import TrainingConfig
from training.data import load
from training.export import write_export
from training.lora import AdaptedLinear, Lora, adapt, write_adapter
from workload import exit_codes
from workload.configuration import ConfigurationError, problem_sentences
from workload.export import load_network
from workload.manifest import read_manifest
from workload.models import build
from workload.models.gpt import Gpt

SIZE = {"context": 8, "layers": 2, "heads": 2, "width": 16}
RANK, ALPHA = 3, 5.0
LAYERS = {
    "self_attn.q_proj": ("attention.queries_keys_values", 0, 3),
    "self_attn.k_proj": ("attention.queries_keys_values", 1, 3),
    "self_attn.v_proj": ("attention.queries_keys_values", 2, 3),
    "self_attn.o_proj": ("attention.out", 0, 1),
    "mlp.gate_proj": ("feed_forward.gate_and_values", 0, 2),
    "mlp.up_proj": ("feed_forward.gate_and_values", 1, 2),
    "mlp.down_proj": ("feed_forward.out", 0, 1),
}
"""Maps Llama layers to the gpt layer with their weights, the index of their part, and the number of
parts."""

ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
SGD = {"optimizer": "sgd", "learning_rate": 0.2, "weight_decay": 0.05}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.02, "weight_decay": 0.5}
FSDP = {"parallel": "fsdp"}
CASES: dict[str, tuple[int, dict[str, Any], tuple[str, ...], float]] = {
    "sgd": (1, SGD, ATTENTION, 2e-6),
    "sgd, all layers": (2, SGD, tuple(LAYERS), 2e-6),
    "sgd, fsdp": (2, SGD | FSDP, ATTENTION, 2e-6),
    "sgd, fsdp, bf16": (2, SGD | FSDP | {"precision": "bf16"}, ATTENTION, 2e-3),
    "adamw": (2, ADAMW, ATTENTION, 1e-5),
    "adamw, fsdp, all layers, accumulated, clipped": (
        2,
        ADAMW | FSDP | {"accumulate": 2, "clip_norm": 0.05, "activation_checkpointing": True},
        tuple(LAYERS),
        2e-5,
    ),
}
"""Number of processes, settings, layers with adapters, and maximum difference of a tensor."""

Train = Callable[..., int]


@pytest.fixture(scope="module")
def exported_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and the export of a language model with random weights. Read-only."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "text").mkdir()
    (folder / "text/a.txt").write_text("the quick brown fox jumps over it. " * 14)
    torch.manual_seed(3)
    values = {"model": "gpt", "dataset": "text", "model_options": SIZE}
    config = TrainingConfig.model_validate(values | {"data_dir": str(folder)})
    data = load("text", folder, (SIZE["context"],), seed=0)
    model = build("gpt", config.model_options, data.outputs, data.shape)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    write_export(folder / "base", model, config, data, {})
    return folder


@pytest.fixture
def base(exported_base: Path, tmp_path: Path) -> Path:
    """A copy of the export, next to a copy of the text."""
    shutil.copytree(exported_base, tmp_path, dirs_exist_ok=True)
    torch.manual_seed(4)
    return tmp_path / "base"


def network(folder: Path) -> nn.Module:
    return load_network(folder, read_manifest(folder))


def random_adapters(model: nn.Module, targets: tuple[str, ...]) -> dict[str, Tensor]:
    """Return random adapters with the tensor names that PEFT uses."""
    tensors = {}
    for block in range(SIZE["layers"]):
        for target in targets:
            layer, _, parts = LAYERS[target]
            rows, columns = model.get_parameter(f"blocks.{block}.{layer}.weight").shape
            name = f"base_model.model.model.layers.{block}.{target}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, columns) * 0.2
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows // parts, RANK) * 0.2
    return tensors


def write_peft(folder: Path, tensors: dict[str, Tensor], **settings: object) -> None:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} | settings
    (folder / "adapter_config.json").write_text(json.dumps(config))


class Adapted(nn.Module):
    """A frozen model with adapters, implemented without the program's adapter code."""

    def __init__(self, model: nn.Module, adapters: dict[str, Tensor]) -> None:
        super().__init__()
        self.frozen = {name: weight.detach() for name, weight in model.named_parameters()}
        self._model = (model,)
        self.names = list(adapters)
        self.adapters = nn.ParameterList([each.clone() for each in adapters.values()])

    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights, with the adapters merged into them."""
        factors, weights_by_name = (
            dict(zip(self.names, self.adapters, strict=True)),
            dict(self.frozen),
        )
        for name, factor in factors.items():
            if name.endswith("lora_A.weight"):
                block, target = name.removeprefix("base_model.model.model.layers.").split(".", 1)
                layer, part, parts = LAYERS[target.removesuffix(".lora_A.weight")]
                weight_name = f"blocks.{block}.{layer}.weight"
                rows = list(weights_by_name[weight_name].chunk(parts))
                product = factors[name.replace("lora_A", "lora_B")] @ factor
                rows[part] = rows[part] + product * (ALPHA / RANK)
                weights_by_name[weight_name] = torch.cat(rows)
        return weights_by_name

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape [samples, tokens, positions]."""
        logits: Tensor = functional_call(self._model[0], self.weights(), (tokens,))
        return logits.transpose(1, 2)


def flags_of(settings: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}".lower() for name, value in settings.items()]


def gpt_settings(
    tmp_path: Path, targets: tuple[str, ...] = ATTENTION, **overrides: object
) -> dict[str, Any]:
    names = ",".join(target.partition(".")[2] for target in targets)
    lora = {"lora_rank": RANK, "lora_alpha": ALPHA, "lora_targets": names}
    common = {"model": "gpt", "dataset": "text", "data_dir": tmp_path, "device": "cpu"}
    common |= {"model_options": json.dumps(SIZE), "init_from": tmp_path / "base"}
    return common | lora | {"epochs": reference.EPOCHS} | overrides


def exported_adapter(run_dir: Path) -> dict[str, Tensor]:
    return load_file(run_dir / "export/adapter/adapter_model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_adapters_match_the_reference(case: str, base: Path, tmp_path: Path) -> None:
    size, settings, targets, tolerance = CASES[case]
    model = network(base)
    tensors = random_adapters(model, targets)
    write_peft(tmp_path / "first", tensors)
    batch = reference.GLOBAL_BATCH // size // settings.get("accumulate", 1)
    paths = {"init_adapter": tmp_path / "first", "run_dir": tmp_path / "run", "batch_size": batch}
    flags = flags_of(gpt_settings(tmp_path, targets) | paths | settings)
    gang = start_gang(flags, size, tmp_path / "gang")
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * size, gang[0].text

    data = load("text", tmp_path, (SIZE["context"],), seed=0).train
    inputs, labels = map(torch.from_numpy, data.batch(np.arange(len(data))))
    expected = Adapted(model, tensors)
    losses = reference.train(expected, inputs, labels, settings, seed=0)
    events = [json.loads(line) for line in gang[0].text.splitlines()]
    epoch_losses = [event["loss"] for event in events if event["event"] == "epoch"]
    assert epoch_losses == pytest.approx(losses, abs=max(tolerance, 1e-6) * 5)
    trained = exported_adapter(tmp_path / "run")
    assert trained.keys() == tensors.keys()
    for name, parameter in zip(expected.names, expected.adapters, strict=True):
        torch.testing.assert_close(trained[name], parameter.detach(), rtol=0, atol=tolerance)
        assert float((trained[name] - tensors[name]).abs().max()) > 20 * tolerance
    merged = dict(network(tmp_path / "run/export").named_parameters())
    expected.adapters = nn.ParameterList([trained[name] for name in expected.names])
    for name, weight in expected.weights().items():
        torch.testing.assert_close(merged[name], weight.detach(), rtol=0, atol=1e-6)


def test_order_of_the_adapted_layers_is_not_another_setting(
    base: Path, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = gpt_settings(tmp_path, epochs=1)
    assert train("run", **settings) == exit_codes.DONE
    names = settings["lora_targets"].split(",")
    assert train("run", **settings | {"lora_targets": names[::-1]}) == exit_codes.DONE
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already"] is True
    with pytest.raises(ConfigurationError, match="lora_targets: none, now q_proj"):
        train("run", **settings | {"lora_targets": names[:1]})
    assert train("fewer", **settings | {"lora_targets": names[:1]}) == exit_codes.DONE
    with pytest.raises(ConfigurationError, match="lora_targets: q_proj, now none"):
        train("fewer", **settings)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_killed_run_resumes_bit_by_bit_without_the_base_model(
    kind: str, base: Path, tmp_path: Path
) -> None:
    def gang(name: str, output: str, *options: str) -> Any:
        lora = {"lora_dropout": 0.2, "batch_size": 4, "ema_decay": 0.9, "parallel": kind}
        settings = gpt_settings(tmp_path, tuple(LAYERS), **lora, run_dir=tmp_path / name)
        flags = [*flags_of(settings), "--checkpoint-steps=4", "--log-every=1", *options]
        return start_gang(flags, 2, tmp_path / output)

    uninterrupted = gang("whole", "a")
    assert [program.exit_code() for program in uninterrupted] == [exit_codes.DONE] * 2, (
        uninterrupted[0].text
    )
    killed = gang("parts", "b", "--step-delay=0.1")
    until(lambda: any((tmp_path / "parts/checkpoints").glob("step-*")))
    kill(killed)
    shutil.rmtree(base)
    resumed = gang("parts", "c")
    assert [program.exit_code() for program in resumed] == [exit_codes.DONE] * 2, resumed[0].text
    assert '"event": "resume"' in resumed[0].text
    digests = {
        read_manifest(tmp_path / name / "export").weights.sha256 for name in ("whole", "parts")
    }
    assert len(digests) == 1
    expected, resumed_adapter = (
        exported_adapter(tmp_path / "whole"),
        exported_adapter(tmp_path / "parts"),
    )
    assert all(torch.equal(resumed_adapter[name], tensor) for name, tensor in expected.items())


def test_optimizer_state_and_averages_are_kept_only_for_adapters(
    base: Path, train: Train, tmp_path: Path
) -> None:
    settings = gpt_settings(tmp_path, ATTENTION, ema_decay=0.9)
    assert train("run", **settings) == exit_codes.DONE
    [*_, newest] = sorted((tmp_path / "run/checkpoints").iterdir())
    names = {name for path in newest.glob("*.safetensors") for name in load_file(path)}
    state_names = [name for name in names if name.startswith(("optimizer/", "average/"))]
    assert state_names
    assert all(".lora_" in name for name in state_names)
    merged = dict(network(tmp_path / "run/export").named_parameters())
    for name, weight in network(base).named_parameters():
        is_unchanged = "queries_keys_values" not in name
        assert torch.equal(merged[name], weight) is is_unchanged, name
    (tmp_path / "run/export/manifest.json").unlink()
    full = {"lora_rank": None, "lora_alpha": None, "lora_targets": None, "ema_decay": None}
    with pytest.raises(ConfigurationError, match=r"has the tensor .*\.lora_.*lora_rank"):
        train("run", **settings | full)


def test_unfinished_run_does_not_resume_with_another_scale(
    base: Path, train: Train, tmp_path: Path
) -> None:
    settings = gpt_settings(tmp_path, epochs=1)
    assert train("run", **settings) == exit_codes.DONE
    (tmp_path / "run/export/manifest.json").unlink()
    with pytest.raises(ConfigurationError, match=rf"lora_alpha: {ALPHA}, now {ALPHA + 1}"):
        train("run", **settings | {"lora_alpha": ALPHA + 1})
    # Checkpoints of earlier versions do not contain the scale.
    [seal] = (tmp_path / "run/checkpoints").glob("*/checkpoint.json")
    content = json.loads(seal.read_bytes())
    del content["lora_alpha"]
    seal.write_text(json.dumps(content))
    assert train("run", **settings) == exit_codes.DONE


def test_new_adapter_initially_has_no_effect(base: Path, train: Train, tmp_path: Path) -> None:
    no_change = {"learning_rate": 1e-12, "weight_decay": 0, "optimizer": "sgd"}
    assert (
        train("run", **gpt_settings(tmp_path, tuple(LAYERS), epochs=1, **no_change))
        == exit_codes.DONE
    )
    merged = dict(network(tmp_path / "run/export").named_parameters())
    for name, weight in network(base).named_parameters():
        torch.testing.assert_close(merged[name], weight, rtol=0, atol=1e-6)
    factors = exported_adapter(tmp_path / "run")
    first = {name: each for name, each in factors.items() if "lora_A" in name}
    max_initial_value = SIZE["width"] ** -0.5
    assert all(float(each.std()) > max_initial_value / 4 for each in first.values())
    assert len({float(each[0, 0]) for each in first.values()}) == len(first)


def test_dropout_applies_only_to_the_adapter() -> None:
    layer = nn.Linear(64, 6, bias=False)
    adapted = AdaptedLinear(layer, ("a", "b"), Lora(2, 4.0, frozenset({"b"}), dropout=0.5))
    nn.init.ones_(adapted.adapters["b"].lora_B.weight)
    inputs = torch.randn(5, 64)
    plain, first, second = layer(inputs), adapted(inputs), adapted(inputs)
    assert torch.equal(first[:, :3], plain[:, :3])
    assert not torch.equal(first[:, 3:], second[:, 3:])
    adapted.eval()
    expected = adapted(inputs)
    torch.testing.assert_close(adapted.merged()(inputs), expected)
    assert not torch.allclose(first[:, 3:], expected[:, 3:])


@pytest.mark.timeout(300)
def test_adapters_can_be_exchanged_with_peft(
    base: Path, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama = base / "huggingface"
    settings = gpt_settings(tmp_path, tuple(LAYERS), learning_rate=0.02)
    train("run", **settings)
    tokens = np.random.default_rng(0).integers(0, 256, (3, SIZE["context"]))
    np.save(tmp_path / "tokens.npy", tokens)
    trained_adapter, new_adapter = tmp_path / "run/export/adapter", tmp_path / "new"
    python = environment("hugging-face", inherits=True)
    paths = [llama, tmp_path / "tokens.npy", trained_adapter, new_adapter]
    run_with(python, "tests.training.read_peft", [*map(str, paths)], tmp_path / "output")

    description = json.loads((trained_adapter / "adapter_config.json").read_text())
    assert description["base_model_name_or_path"] == str(llama)
    with torch.no_grad():
        merged = network(tmp_path / "run/export")(torch.from_numpy(tokens)).numpy()
        plain = network(base)(torch.from_numpy(tokens)).numpy()
    logits = np.load(trained_adapter / "logits.npy")
    assert np.abs(logits - merged).max() <= 1e-4 * np.abs(merged).max()
    assert np.abs(logits - plain).max() > 1e-2 * np.abs(merged).max()

    capsys.readouterr()
    no_change = {"learning_rate": 1e-12, "weight_decay": 0, "optimizer": "sgd"}
    settings |= {"init_from": llama}
    common = {name: value for name, value in settings.items() if not name.startswith("lora")}
    train("full", **common | no_change | {"init_adapter": new_adapter})
    start = json.loads(capsys.readouterr().out.splitlines()[0])
    assert len(start["initial_weights"]["adapter"]) == 64
    train("tuned", **settings | no_change | {"init_adapter": new_adapter})
    expected = np.load(new_adapter / "logits.npy")
    for name in ("full", "tuned"):
        with torch.no_grad():
            actual = network(tmp_path / name / "export")(torch.from_numpy(tokens)).numpy()
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max(), name


@pytest.mark.parametrize("path", ["run", "run/export", "run/export/huggingface"])
def test_adapter_config_names_the_hugging_face_directory_of_its_base_model(
    path: str, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    base.rename(tmp_path / "run/export")
    model, lora = network(tmp_path / "run/export"), Lora(RANK, ALPHA, frozenset({"q_proj"}))
    assert isinstance(model, Gpt)
    adapt(model, lora)
    write_adapter(tmp_path / "adapter", model, lora, tmp_path / path)
    description = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert description["base_model_name_or_path"] == str(tmp_path / "run/export/huggingface")
    with safe_open(tmp_path / "adapter/adapter_model.safetensors", "pt") as file:
        # Hugging Face libraries refuse files without this entry.
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"use_dora": True}, "use_dora true, not false: only plain LoRA is supported"),
        ({"use_qalora": True, "qalora_group_size": 1}, "use_qalora true, not false"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens \[1\], not null"),
        ({"init_lora_weights": "pissa_niter_4"}, 'init_lora_weights "pissa_niter_4", not true'),
        ({"peft_type": "IA3"}, 'peft_type "IA3", not "LORA"'),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"r": "many"}, "has r 'many' and lora_alpha 5.0: both must be positive"),
        ({"r": 0}, "has r 0 and lora_alpha 5.0: both must be positive"),
        ({"r": True}, "has r True and lora_alpha 5.0: both must be positive"),
        ({"lora_alpha": math.nan}, "has r 3 and lora_alpha nan: both must be positive"),
        ({"lora_alpha": math.inf}, "has r 3 and lora_alpha inf: both must be positive"),
        ({"lora_alpha": 0}, "has r 3 and lora_alpha 0: both must be positive"),
        ({"r": 4}, r"lora_A.weight has shape \[3, 16\], not \[4, 16\]"),
        ({"lora_alpha": 7}, "has rank 3, alpha 7 and targets q_proj,v_proj: set lora_rank"),
    ],
)
def test_adapter_other_than_plain_lora_for_this_model_is_refused(
    change: dict[str, object], problem: str, base: Path, train: Train, tmp_path: Path
) -> None:
    write_peft(tmp_path / "first", random_adapters(network(base), ATTENTION), **change)
    with pytest.raises(ConfigurationError, match=problem):
        train("run", **gpt_settings(tmp_path, init_adapter=tmp_path / "first"))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "not readable JSON"),
        (lambda folder: (folder / "adapter_model.safetensors").write_text("{"), "is not readable"),
        (lambda folder: save_file({}, folder / "adapter_model.safetensors"), "no tensors"),
        (
            lambda folder: save_file(
                dict([*load_file(folder / "adapter_model.safetensors").items()][:-1]),
                folder / "adapter_model.safetensors",
            ),
            "tensors are not those of this gpt model: base_model",
        ),
    ],
)
def test_a_damaged_adapter_is_refused(
    damage: Callable[[Path], object], problem: str, base: Path, train: Train, tmp_path: Path
) -> None:
    write_peft(tmp_path / "first", random_adapters(network(base), ATTENTION))
    damage(tmp_path / "first")
    with pytest.raises(ConfigurationError, match=problem):
        train("run", **gpt_settings(tmp_path, init_adapter=tmp_path / "first"))


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.usefixtures("base")
def test_tensors_without_initial_weights_are_not_frozen(
    partial: bool, train: Train, tmp_path: Path
) -> None:
    options = json.dumps(SIZE | {"layers": 3})
    settings = gpt_settings(tmp_path, model_options=options, init_partial=partial)
    problem = r"base lacks blocks\.2\.[^:]*, which would keep random values"
    with pytest.raises(ConfigurationError, match=problem):
        train("run", **settings)


@pytest.mark.parametrize("path", ["base", "base/huggingface"])
def test_adapter_that_is_merged_into_the_initial_weights_is_refused(
    path: str, base: Path, train: Train, tmp_path: Path
) -> None:
    write_peft(base / "adapter", random_adapters(network(base), ATTENTION))
    settings = gpt_settings(tmp_path, init_from=tmp_path / path, init_adapter=base / "adapter")
    with pytest.raises(ConfigurationError, match="adapter is already merged into the weights of"):
        train("run", **settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"lora_rank": 4}, "lora_rank is set, but only model gpt has LoRA adapters"),
        ({"init_adapter": "/a"}, "init_adapter is set, but only model gpt has LoRA adapters"),
        ({"lora_alpha": 4}, "lora_alpha requires lora_rank"),
        (
            {"model": "gpt", "dataset": "text", "lora_rank": 4},
            "lora_rank requires init_from: set it to the trained weights",
        ),
        (
            {"lora_targets": "q_proj,conv"},
            "input should be 'q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj'",
        ),
        (
            {"model": "gpt", "dataset": "text", "lora_rank": 4, "init_from": "/a"}
            | {"lora_targets": ["q_proj", "q_proj"]},
            "lora_targets contains a duplicate layer: list each layer only once",
        ),
    ],
)
def test_invalid_lora_settings_are_reported(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(settings)
    assert problem in "; ".join(problem_sentences(caught.value, {}))


def test_result_settings_include_lora_settings() -> None:
    values = {"model": "gpt", "dataset": "text", "init_from": "/a", "lora_rank": 4}
    config = TrainingConfig.model_validate(values | {"lora_targets": "q_proj,k_proj"})
    assert config.result_settings()["lora_rank"] == 4
    assert config.result_settings()["lora_targets"] == "q_proj,k_proj"
    assert "--lora-targets=q_proj,k_proj" in config.to_args()
