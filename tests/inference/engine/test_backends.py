"""Outputs of each backend, compared with those of the PyTorch network."""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, get_args
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inference.config import Backend, InferenceConfig
from inference.engine.backends import Choice, Graphed, load_backend
from inference.engine.handlers import Handler, Source, choose_handler
from tests.inference.engine.exports import Serve, infer, write_model
from training.config import TrainingConfig
from training.data import load
from training.export import write_export
from workload.configuration import Precision
from workload.export import load_network
from workload.manifest import ExportError, Manifest, read_manifest
from workload.models import build

CPU = torch.device("cpu")

TOLERANCE = {"int8": 0.02, "pruned": 0.02}
"""Tolerance of a probability. Backends that are not listed compute with the original weights."""

COMPILED: tuple[Backend, ...] = ("compile", "aotinductor")


LINEAR = "tests.inference.engine.exports:linear"


def write_linear(folder: Path) -> Manifest:
    """Write the export of a linear network, which is compiled quickly."""
    network = build(LINEAR, {}, 1, (3,))
    return write_model(folder, network, model=LINEAR, input_shape=(3,), outputs=1)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of an untrained convolutional network with all artifacts."""
    run = tmp_path_factory.mktemp("forms")
    settings = {"model": "digits-net", "export_formats": "pt2", "quantize": "static"}
    config = TrainingConfig.model_validate(settings | {"prune": 0.1, "run_dir": str(run)})
    torch.manual_seed(0)
    network = build("digits-net", {}, 10, (1, 8, 8))
    data = load("digits", Path("/nowhere"), (1, 8, 8), seed=0)
    write_export(run / "export", network, config, data, {"accuracy": 0.1})
    return run / "export"


def choice(export: Path, cache: Path, device: torch.device = CPU, **settings: Any) -> Choice:
    config = InferenceConfig(model_name="model", model_path=PurePosixPath(export), **settings)
    return Choice(config, read_manifest(export), device, cache)


def handler(export: Path, backend: Backend, scratch: Path) -> Handler:
    """Load a handler as a worker does."""
    chosen = choice(export, scratch, backend=backend)
    loaded = choose_handler("auto", chosen.manifest)
    loaded.load(Source(export, chosen.manifest, CPU, lambda: load_backend(chosen)))
    return loaded


@pytest.mark.parametrize("backend", [name for name in get_args(Backend) if name not in COMPILED])
def test_interpreted_backends_compute_the_same_outputs_as_the_network(
    backend: Backend, export: Path, tmp_path: Path
) -> None:
    computing = handler(export, backend, tmp_path)
    network = load_network(export, read_manifest(export))
    images = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
    for count in (1, 2, 5):
        with torch.no_grad():
            expected = network(torch.from_numpy(images[:count])).softmax(1).numpy()
        outputs = computing.compute({"images": images[:count]})
        assert outputs["probabilities"] == pytest.approx(expected, abs=TOLERANCE.get(backend, 1e-5))
        assert outputs["class"].tolist() == outputs["probabilities"].argmax(1).tolist()
        assert [int(label) for label in outputs["label"]] == outputs["class"].tolist()


@pytest.mark.parametrize("backend", ["eager", "pruned"])
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.005)])
def test_half_precision_outputs_differ_only_by_rounding(
    backend: Backend, precision: Precision, tolerance: float, export: Path
) -> None:
    images = torch.rand((5, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    half = load_backend(choice(export, export, backend=backend, precision=precision))
    with torch.inference_mode():
        expected = load_backend(choice(export, export, backend=backend))(images)
        computed = half(images)
    assert computed.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert 0 < (computed.float() - expected).abs().max() <= tolerance
    # Parameters converted outside inference mode fail in some operations, such as cuDNN's.
    assert all(parameter.is_inference() for parameter in half.parameters())


def test_half_precision_does_not_round_token_ids(tmp_path: Path) -> None:
    options = {"context": 8, "layers": 1, "heads": 1, "width": 8}
    network = build("gpt", options, 300, (8,))
    write_model(
        tmp_path,
        network,
        model="gpt",
        options=options,
        input_shape=(8,),
        input_dtype="int64",
        outputs=300,
    )
    tokens = torch.tensor([[1, 257, 299, 0]])
    half = load_backend(choice(tmp_path, tmp_path, precision="bf16"))
    with torch.inference_mode():
        assert half(tokens).float() == pytest.approx(network(tokens).numpy(), abs=0.02)


class FakeGraph:
    """A replacement for a CUDA graph on the CPU, which repeats the captured calls of `Recorded`."""

    capturing: "FakeGraph | None" = None

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []

    @classmethod
    @contextlib.contextmanager
    def capture(cls, graph: "FakeGraph", **_: object) -> Iterator[None]:
        cls.capturing = graph
        yield
        cls.capturing = None

    def replay(self) -> None:
        for inputs, outputs in self.calls:
            outputs.copy_(inputs.sum(1, keepdim=True))


class Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.called_with: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.called_with.append(len(inputs))
        outputs = inputs.sum(1, keepdim=True)
        if FakeGraph.capturing is not None:
            FakeGraph.capturing.calls.append((inputs, outputs))
        return outputs


def test_batches_are_padded_to_the_next_captured_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", FakeGraph.capture)
    network = Recorded()
    graphed = Graphed(network, torch.zeros(6, 2))
    # Each size is computed twice: once to warm up, once to capture it.
    assert network.called_with == [6, 6, 4, 4, 2, 2, 1, 1]
    outputs = []
    for samples in (1, 2, 3, 5, 6):
        inputs = torch.rand(samples, 2)
        outputs.append((graphed(inputs), inputs.sum(1, keepdim=True)))
    # Results stay valid after later batches.
    assert all(torch.equal(actual, expected) for actual, expected in outputs)
    assert len(network.called_with) == 8
    for shape in ((7, 2), (2, 3)):
        inputs = torch.rand(shape)
        assert torch.equal(graphed(inputs), inputs.sum(1, keepdim=True))
    assert network.called_with[8:] == [7, 2]


def test_batch_norms_are_folded_if_outputs_stay_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build("resnet18", {"image_size": 32}, 3, (3, 32, 32)).train()
    with torch.no_grad():
        # Make the running averages differ from those of a new network.
        network(torch.rand(8, 3, 32, 32))
    facts = {"options": {"image_size": 32}, "input_shape": (3, 32, 32), "classes": ("a", "b", "c")}
    write_model(tmp_path, network.eval(), model="resnet18", **facts)
    fast = load_backend(choice(tmp_path, tmp_path))
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fast.modules())
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(fast(images), network(images), atol=1e-4)


def test_error_names_the_missing_artifact(probe: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the export has no artifact 'int8'; its artifacts: none"):
        load_backend(choice(probe, tmp_path, backend="int8"))
    with pytest.raises(ExportError, match="backend int8 runs only on the CPU"):
        load_backend(choice(probe, tmp_path, torch.device("cuda"), backend="int8"))


@pytest.mark.parametrize("backend", COMPILED)
def test_a_missing_compiler_is_reported(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    write_linear(tmp_path)
    no_compiler = inductor.patch({"cpp.cxx": ("no-such-compiler",)})
    message = r"needs a C\+\+ compiler .* set backend to eager"
    with no_compiler, pytest.raises(ExportError, match=message):
        load_backend(choice(tmp_path, tmp_path, backend=backend, own_model=LINEAR))


@pytest.mark.parametrize("backend", COMPILED)
async def test_compiled_backends_compute_the_same_outputs_as_the_network(
    backend: Backend, tmp_path: Path, serve: Serve
) -> None:
    network = load_network(tmp_path, write_linear(tmp_path), LINEAR)
    settings = {"handler": "auto", "backend": backend, "own_model": LINEAR}
    async with serve(tmp_path, workers=2 if backend == "aotinductor" else 1, **settings) as engine:
        assert engine.served
        assert engine.served.backend == backend
        for count in (1, 2, 5):
            rows = np.random.default_rng(count).random((count, 3), np.float32)
            answer = await infer(engine.pool, {"inputs": rows})
            with torch.no_grad():
                expected = network(torch.from_numpy(rows)).numpy()
            assert answer.outputs["outputs"] == pytest.approx(expected, abs=1e-5)
