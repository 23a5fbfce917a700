"""A fine-tune with a custom program and image on real nodes, started by Accelerate."""

from pathlib import Path
from typing import Any

from tests.cluster.platform import Platform


def test_custom_fine_tune_runs_under_accelerate(real: Platform, checkpoints: Path) -> None:
    real.make("up")
    base = real.outputs()["images"]["training"]

    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:images"]["workloads"]["diffusion"] = {
            "build": {
                "dockerfile": "examples/diffusion/Dockerfile",
                "base_image": base,
                "sources": ["examples/diffusion", "requirements/diffusion.txt"],
            }
        }
        processes = ["--num_machines=1", "--num_processes=2", "--main_process_port=0"]
        accelerate = ["training.launch_accelerate", "--multi_gpu", *processes]
        accelerate += ["--mixed_precision=no", "--dynamo_backend=no"]
        program = ["-m", "examples.diffusion", "--run-dir=$(RUN_DIR)", "--steps=20"]
        config["gpu-platform:training"]["jobs"]["fine-tune"] = {
            "queue": "research",
            "image": "diffusion",
            "command": ["python3", "-m", *accelerate, *program],
            "gpus_per_node": 2,
            "cpu": "200m",
            "memory": "2Gi",
            "omp_threads": 1,
        }

    real.edit(add)
    real.make("up")
    run = real.run_name("fine-tune")
    [start, *_, finished] = real.logs(run)
    assert (start["event"], start["processes"]) == ("start", 2)
    assert finished["event"] == "finished"
    assert finished["held_out_loss"] < start["held_out_loss"]
    assert any((checkpoints / run / "export").iterdir())
