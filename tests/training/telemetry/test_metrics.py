"""Metrics, scraped over HTTP during real runs."""

import math
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from tests.training.programs import Program, free_port, start, until
from training.checkpoints.state import resume
from training.config import TrainingConfig
from training.gang.distributed import joined
from training.gang.preflight import SHARED_MEMORY
from training.gang.world import World
from training.preparation import prepare
from training.telemetry import metrics
from training.telemetry.metrics import Metrics
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.manifest import read_manifest
from workload.run import Watchdog

Train = Callable[..., int]


def scrape(port: int) -> dict[str, float]:
    """Return values by name, or an empty dictionary while the endpoint does not respond."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    except httpx.TransportError:
        return {}
    families = text_string_to_metric_families(text)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


def start_node(port: int, folder: Path) -> list[Program]:
    """Start two processes of one node, with different local ranks."""
    flags = ["--model=digits-net", "--epochs=2", "--batch-size=64", "--step-delay=0.1"]
    flags += [f"--metrics-port={port}", f"--run-dir={folder / 'run'}"]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        start("training", flags, {**shared, "RANK": r, "LOCAL_RANK": r}, folder / f"rank-{r}")
        for r in "01"
    ]


def test_the_first_process_of_a_node_serves_metrics(tmp_path: Path) -> None:
    port = free_port()
    scrapes: list[dict[str, float]] = []
    gang = start_node(port, tmp_path)

    def in_the_second_epoch() -> bool:
        scrapes.append(scrape(port))
        return scrapes[-1].get("training_epoch") == 1 and scrapes[-1]["training_step"] > 14

    until(in_the_second_epoch)
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2
    latest = scrapes[-1]
    # The first epoch had 1,437 samples in 12 steps of up to 128. Metrics that are read while they
    # are updated may miss one step.
    samples = 1437 + 128 * (latest["training_step"] - 12)
    assert latest["training_samples_total"] in (samples - 128, samples)
    assert latest["training_step_seconds_count"] == pytest.approx(latest["training_step"], abs=1)
    assert latest["training_step_seconds_sum"] >= 0.1 * latest["training_step_seconds_count"]
    assert latest["training_data_wait_seconds_sum"] < latest["training_step_seconds_sum"]
    assert latest["training_checkpoint_seconds_count"] == 1
    assert 0 < latest["training_samples_per_second"] <= 128 / 0.1
    assert 0 < latest["training_loss"] < 2.5
    assert 0 < latest["training_learning_rate"] <= 1e-3
    assert 0 < latest["training_gradient_norm"] < 100
    assert 0.1 < latest["training_accuracy"] <= 1
    assert latest["training_info"] == 1
    rates = [
        metrics["training_learning_rate"] for metrics in scrapes if metrics.get("training_step")
    ]
    assert len(set(rates)) > 1


def test_metrics_do_not_change_the_weights(train: Train, tmp_path: Path) -> None:
    train("alone")
    train("watched", metrics_port=free_port())
    digests = [
        read_manifest(tmp_path / run / "export").weights.sha256 for run in ("alone", "watched")
    ]
    assert digests[0] == digests[1]


def test_a_port_in_use_is_reported_before_the_first_step(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - as the server binds
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"metrics_port {port} is not available"):
            train(metrics_port=port)
    assert not capsys.readouterr().out


def value(metrics: Metrics, name: str, **labels: str) -> float:
    sample = metrics.registry.get_sample_value(name, labels)
    assert sample is not None, name
    return sample


def seconds(metrics: Metrics, activity: str) -> float:
    return value(metrics, "training_seconds_total", activity=activity)


def test_activities_account_for_all_time() -> None:
    started = time.perf_counter()
    metrics = Metrics(torch.device("cpu"))
    created = time.perf_counter()
    for _ in metrics.timed([1, 2]):
        time.sleep(0.02)
        with metrics.activities.doing("checkpoint"), metrics.checkpoint_seconds.time():
            time.sleep(0.04)
    with metrics.activities.doing("evaluation"):
        time.sleep(0.02)
    min_seconds = time.perf_counter() - created
    assert seconds(metrics, "checkpoint") >= 0.08
    assert seconds(metrics, "step") >= 0.04
    assert seconds(metrics, "evaluation") >= 0.02
    names = ("start", "data", "step", "checkpoint", "evaluation", "export", "other")
    total = sum(seconds(metrics, name) for name in names)
    # Time passes between the readings.
    assert min_seconds <= total <= time.perf_counter() - started
    assert value(metrics, "training_checkpoint_seconds_count") == 2
    assert value(metrics, "training_step_seconds_sum") >= 0.12


def test_checkpoint_written_by_another_thread_is_counted() -> None:
    metrics = Metrics(torch.device("cpu"))
    writer = threading.Thread(target=metrics.saved, args=(120, 2.5))
    writer.start()
    writer.join()
    assert value(metrics, "training_checkpoint_step") == 120
    assert value(metrics, "training_checkpoint_write_seconds_sum") == 2.5


def test_a_resumed_run_reports_its_checkpoint_before_the_next_save(
    train: Train, tmp_path: Path
) -> None:
    # An epoch of 1,437 samples has 23 steps of 64.
    train(epochs=2, batch_size=64)
    settings = {"model": "digits-net", "dataset": "digits", "batch_size": 64}
    config = TrainingConfig.model_validate(settings | {"run_dir": str(tmp_path / "run")})
    device, world = torch.device("cpu"), World(rank=0, size=1, local_rank=0, master="")
    with joined(world, device, 60), Watchdog(0) as watchdog, Metrics(device) as metrics:
        assert resume(prepare(config, world, device, watchdog, metrics))
    assert value(metrics, "training_checkpoint_step") == 46
    assert value(metrics, "training_step") == 46
    assert value(metrics, "training_epoch") == 2


def test_a_step_skipped_by_the_scaler_is_counted() -> None:
    metrics = Metrics(torch.device("cpu"))
    assert value(metrics, "training_loss_scale") == 1
    metrics.scaled(65536, skipped=False)
    metrics.scaled(32768, skipped=True)
    assert value(metrics, "training_loss_scale") == 32768
    assert value(metrics, "training_skipped_steps_total") == 1


def test_metrics_without_a_known_value_are_nan() -> None:
    metrics = Metrics(torch.device("cpu"))
    assert math.isnan(value(metrics, "training_loss"))
    assert math.isnan(value(metrics, "training_gradient_norm"))


def scraped(name: str) -> float | None:
    registry = metrics.Metrics(torch.device("cpu")).registry
    return registry.get_sample_value(f"training_shm_{name}_bytes")


def test_used_shared_memory_is_measured() -> None:
    initial_size = scraped("size")
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as file:
        file.write(b"x" * 2**20)
        file.flush()
        size, used = scraped("size"), scraped("used")
    assert size == initial_size
    assert size is not None
    assert used is not None
    assert 0 < used <= size


def test_missing_shared_memory_has_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SHARED_MEMORY", tmp_path / "none")
    assert scraped("size") is None
