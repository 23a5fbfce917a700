import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from inference.config import InferenceConfig
from inference.engine.handlers import Handler, Source
from inference.engine.interface import InputError, Tensors, TensorSpec
from inference.engine.process import INITIAL_BYTES, Arena, Slot, WorkerSpec, _run
from inference.engine.worker import Pinning, _compute_batch, load
from tests import fork_server
from tests.processes import is_running
from tests.training.programs import until
from training.data import held_out_digits
from workload.files import sha256_of
from workload.manifest import ExportError, read_manifest


def loaded(export: Path, own_model: str = "", handler: str = "auto") -> Handler:
    """Load a handler as a worker does, in this process."""
    config = InferenceConfig(
        model_name="digits",
        model_path=PurePosixPath(export),
        handler=handler,
        own_model=own_model,
        device="cpu",
    )
    return load(WorkerSpec(config, read_manifest(export), 0, 1, Path("/nowhere")))


def probabilities(handler: Handler, images: NDArray[np.float32]) -> NDArray[np.float32]:
    return handler.compute({"images": images})["probabilities"]


@pytest.fixture
def export(trained: Path, tmp_path: Path) -> Path:
    """A copy of the export, which the test may damage."""
    return shutil.copytree(trained, tmp_path / "export")


def edit_manifest(export: Path, **changes: object) -> None:
    path = export / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def seal(export: Path) -> None:
    """Update the manifest to match the weights, as if they had been replaced deliberately."""
    weights = export / "model.safetensors"
    sealed = {
        "file": weights.name,
        "size": weights.stat().st_size,
        "sha256": sha256_of(weights),
    }
    edit_manifest(export, weights=sealed)


def change_tensors(export: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(export / "model.safetensors")
    change(tensors)
    save_file(tensors, export / "model.safetensors")
    seal(export)


@pytest.mark.parametrize(("code", "registered"), [(0, True), (2, False)])
def test_arena_is_registered_with_cuda_until_it_is_replaced(
    code: int, registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = MagicMock()
    runtime.cudaHostRegister.return_value = code
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    # The call that clears the CUDA error fails with or without a GPU.
    arena = Arena.create()
    arena.on_map(Pinning())
    arena.put({"x": [np.zeros(INITIAL_BYTES)]})
    (first, size, _), (_, grown, _) = (
        each.args for each in runtime.cudaHostRegister.call_args_list
    )
    assert (size, grown) == (INITIAL_BYTES, 8 * INITIAL_BYTES)
    released = [call(first)] if registered else []
    assert runtime.cudaHostUnregister.call_args_list == released
    order = [name for name, *_ in runtime.mock_calls]
    assert order == ["cudaHostRegister", *["cudaHostUnregister"] * registered, "cudaHostRegister"]
    arena.close()


def test_served_accuracy_equals_the_accuracy_of_the_training_run(trained: Path) -> None:
    images, labels = held_out_digits()
    outputs = loaded(trained).compute({"images": images})
    assert outputs["probabilities"].shape == (360, 10)
    assert outputs["probabilities"].sum(1) == pytest.approx(1)
    assert [int(label) for label in outputs["label"]] == outputs["class"].tolist()
    accuracy = float((outputs["class"] == labels).mean())
    assert accuracy == pytest.approx(read_manifest(trained).metrics["accuracy"])
    assert accuracy > 0.9


def test_worker_exits_normally_if_the_server_stops_while_it_loads(
    trained: Path, tmp_path: Path
) -> None:
    server_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server_end.close()
    config = InferenceConfig(
        model_name="digits", model_path=PurePosixPath(trained), handler="auto", device="cpu"
    )
    spec = WorkerSpec(config, read_manifest(trained), 0, 1, tmp_path)
    process = fork_server.SERVER.Process(target=_run, args=(worker_end, (), spec))
    process.start()
    worker_end.close()
    process.join()
    assert process.exitcode == 0


def test_a_missing_export_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="does not exist yet"):
        loaded(tmp_path / "later")


def test_weights_whose_digest_does_not_match_the_manifest_are_refused(export: Path) -> None:
    weights = export / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ExportError, match="the weights are not those that were exported"):
        loaded(export)


def test_weights_whose_size_does_not_match_the_manifest_are_refused(export: Path) -> None:
    with (export / "model.safetensors").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ExportError, match="bytes, but the manifest states"):
        loaded(export)


def test_weights_outside_the_export_are_refused(export: Path) -> None:
    weights = {"file": "../../model.safetensors", "size": 1, "sha256": "0" * 64}
    edit_manifest(export, weights=weights)
    with pytest.raises(ExportError, match=r"manifest.json is damaged: weights.file"):
        loaded(export)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "alexnet"}, "unknown model alexnet: use digits-net, mnist-net"),
        ({"model": "shutil:rmtree"}, "'shutil:rmtree', which is not part of this project"),
        ({"model": "gpt"}, r"gpt takes inputs of shape \(256,\), not \(1, 8, 8\)"),
        ({"options": {"layers": 2}}, "model_options of digits-net: layers is not a known setting"),
        ({"input_shape": [3, 8, 8]}, "digits-net takes inputs of"),
        ({"classes": ["a", "b"]}, "there are 2 classes for 10 outputs"),
        ({"classes": ["a", "b"], "outputs": 2}, r"tensor fc2.\w+ is torch.float32 \[10"),
        ({"model": "mnist-net", "input_shape": [1, 28, 28]}, "tensor"),
        ({"format": 2}, "is damaged: format"),
        ({"metrics": None}, "is damaged: metrics"),
    ],
)
def test_manifest_that_does_not_match_the_model_is_refused(
    changes: dict[str, object], message: str, export: Path
) -> None:
    edit_manifest(export, **changes)
    with pytest.raises(ExportError, match=message):
        loaded(export)


def test_a_manifest_without_optional_fields_is_read(export: Path) -> None:
    path = export / "manifest.json"
    document = json.loads(path.read_text())
    for field in ("options", "outputs", "input_dtype", "artifacts", "code_version", "signature"):
        document.pop(field)
    path.write_text(json.dumps(document))
    handler = loaded(export)
    assert handler.inputs[0].shape == (-1, 1, 8, 8)
    assert handler.outputs[0].shape == (-1, 10)


CUSTOM_MODEL = """
from torch import nn

def net(outputs, input_shape, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))
"""


def test_custom_model_is_loaded_only_if_its_name_is_allowed(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (export / "served_nets.py").write_text(CUSTOM_MODEL)
    monkeypatch.syspath_prepend(str(export))
    edit_manifest(export, model="served_nets:net", options={"width": 6})
    tensors = {"1.weight": (6, 64), "1.bias": (6,), "3.weight": (10, 6), "3.bias": (10,)}
    save_file(
        {name: torch.zeros(shape) for name, shape in tensors.items()}, export / "model.safetensors"
    )
    seal(export)
    with pytest.raises(ExportError, match="it must not be loaded here"):
        loaded(export)
    with pytest.raises(ExportError, match="only other:net may be loaded here"):
        loaded(export, own_model="other:net")
    model = loaded(export, own_model="served_nets:net")
    assert probabilities(model, np.zeros((2, 1, 8, 8), np.float32)) == pytest.approx(0.1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_an_unreadable_manifest_is_refused(content: bytes, export: Path) -> None:
    (export / "manifest.json").write_bytes(content)
    with pytest.raises(ExportError, match=r"manifest.json is damaged"):
        loaded(export)


def test_an_invalid_safetensors_file_is_refused(export: Path) -> None:
    (export / "model.safetensors").write_bytes(b"\xff" * 100)
    seal(export)
    with pytest.raises(ExportError, match="not a readable safetensors"):
        loaded(export)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("fc1.bias"),
            "does not contain exactly the model's tensors: fc1.bias",
        ),
        (
            lambda tensors: tensors.update(more=torch.zeros(1)),
            "does not contain exactly the model's tensors: more",
        ),
        (lambda tensors: tensors.update({"fc1.bias": torch.zeros(63)}), r"fc1.bias is .* \[63\]"),
        (lambda tensors: tensors.update({"fc1.bias": torch.zeros(64).half()}), "torch.float16"),
        (
            lambda tensors: tensors["fc2.bias"].fill_(torch.nan),
            "returns NaN or infinity for an input of zeros",
        ),
    ],
)
def test_tensors_that_do_not_match_the_model_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, export: Path
) -> None:
    change_tensors(export, change)
    with pytest.raises(ExportError, match=message):
        loaded(export)


def test_batch_has_the_same_outputs_as_single_samples(trained: Path) -> None:
    model = loaded(trained)
    images, _ = held_out_digits()
    single = np.concatenate([probabilities(model, images[i : i + 1]) for i in range(0, 360, 60)])
    assert probabilities(model, images)[::60] == pytest.approx(single, abs=1e-6)


def test_a_network_without_classes_returns_raw_outputs(trained: Path, export: Path) -> None:
    edit_manifest(export, classes=[])
    images, _ = held_out_digits()
    outputs = loaded(export).compute({"images": images[:3]})["outputs"]
    best = loaded(trained).compute({"images": images[:3]})["class"]
    assert outputs.shape == (3, 10)
    assert outputs.argmax(1).tolist() == best.tolist()


class Activations:
    """Memory of a computation, which the test observes through weak references."""


class Failing(Handler):
    """Handler that fails, and checks that earlier computations have released their memory."""

    def __init__(self) -> None:
        self.inputs = (TensorSpec("x", "FP32", (-1,)),)
        self.outputs = self.inputs
        self.activations: list[weakref.ref[Activations]] = []

    def load(self, source: Source) -> None: ...

    def predict(self, decoded: Tensors) -> Tensors:
        assert not any(earlier() for earlier in self.activations)
        activations = Activations()
        self.activations.append(weakref.ref(activations))
        raise InputError("invalid")


def test_memory_of_a_failed_computation_is_released_before_the_next_one() -> None:
    slot, handler = Slot(Arena.create(), Arena.create()), Failing()
    tensors = slot.inputs.put({"x": [np.zeros(3, np.float32)]})
    request = {"slot": 0, "tensors": tensors, "samples": 3, "output_names": None, "final": True}
    gc.disable()
    try:
        results = [_compute_batch(slot, handler, request) for _ in range(2)]
        assert not any(activations() for activations in handler.activations)
    finally:
        gc.enable()
    assert [result["error"] for result in results] == [("input", "invalid")] * 2
    assert len(handler.activations) == 2
    for arena in slot:
        arena.close()


def test_the_documented_custom_handler_works(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[3] / "docs/inference-engine.md").read_text()
    (code,) = re.findall(r"```python\n# my_handlers.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_handlers.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    custom = loaded(trained, handler="my_handlers:Scans")
    images, _ = held_out_digits()
    expected = probabilities(loaded(trained), images[:5])
    assert probabilities(custom, images[:5] * 255) == pytest.approx(expected, abs=1e-6)
    # A dark image is also rejected in a batch with bright ones.
    dark = np.zeros((1, 1, 8, 8), np.float32)
    for rejected in (dark, np.concatenate([dark, dark + 200])):
        with pytest.raises(InputError, match="too dark"):
            custom.compute({"images": rejected})


KILLED_FORK_SERVER = """
import multiprocessing, os, signal, time
from multiprocessing import forkserver

def hang(end):
    # Only this process imports PyTorch.
    from inference.engine.worker import exit_with_fork_server
    exit_with_fork_server()
    end.send("hangs")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=hang, args=(theirs,))
    process.start()
    ours.recv()
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    process.join()
    print(process.pid)
"""


def test_hanging_worker_does_not_outlive_its_fork_server(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED_FORK_SERVER)
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    pid = int(result.stdout)
    until(lambda: not is_running(pid))
