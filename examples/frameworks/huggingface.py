"""Training with the Hugging Face Trainer.

Run it with `python -m training.launch --nproc-per-node=2 huggingface.py STEPS`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from workload.run import Run


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that reports steps to the run and hands the Trainer's checkpoints over to it."""

    def __init__(self, run: Run) -> None:
        self.run, self.stopped = run, False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the step. If a stop is requested, save a checkpoint and stop all processes."""
        self.run.report(state.global_step)
        if self.run.should_stop():
            self.stopped = control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report the mean loss of all processes."""
        if "loss" in logs:
            self.run.report(state.global_step, float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move the Trainer's new checkpoint into the run's checkpoint directory."""
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.world_size > 1:
            # The Trainer does not wait until the other processes have written their files.
            torch.distributed.barrier()

        def move(directory: Path) -> None:
            if args.process_index == 0:
                for path in written.iterdir():
                    path.replace(directory / path.name)
                written.rmdir()

        self.run.save(state.global_step, move)


def main(steps: int, directory: str) -> None:
    """Train a small language model on sequences that each repeat one token."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    )
    texts = torch.randint(16, (256, 1)).repeat(1, 8)
    arguments = TrainingArguments(
        f"{directory}/trainer",
        max_steps=steps,
        save_steps=100,
        logging_steps=10,
        report_to=[],
        # By default, the Trainer does not log NaN losses, so the run would not detect them.
        logging_nan_inf_filter=False,
        # Without this setting, the processes would train independently on a machine without GPUs.
        use_cpu=not torch.cuda.is_available(),
    )
    data = [{"input_ids": text, "labels": text} for text in texts]
    trainer = Trainer(model, arguments, train_dataset=data)

    with Run(steps, directory) as run:
        callback = RunCallback(run)
        trainer.add_callback(callback)
        if run.resume() < steps:
            trainer.train(resume_from_checkpoint=str(run.newest) if run.newest else None)
        else:
            # All steps are done. The Trainer would still train one more step.
            model = GPT2LMHeadModel.from_pretrained(run.newest)
        if callback.stopped:
            run.interrupt(trainer.state.global_step)
        run.finish(lambda directory: model.save_pretrained(directory), {})


if __name__ == "__main__":
    main(int(sys.argv[1]), os.environ["RUN_DIR"])
