"""Fine-tuning of a UNet, with checkpoints and an export."""

import argparse
import math
import shutil
import signal
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from examples.diffusion.pictures import Pictures, Sizes
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.files import list_checkpoints, step_of, sync_folder
from workload.report import conclude, emit

Batch = dict[str, Tensor]
HELD_OUT_IMAGES = 64
TIME_WIDTH = 8
CAPTION_WIDTH = 32


def finetune(options: argparse.Namespace) -> int:
    """Train until the last step, or until SIGTERM arrives, and return the exit code.

    Raise ConfigurationError for invalid options.
    """
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(options.seed)
    unet = load_unet(options.unet)
    sizes = input_sizes(unet)
    # SDXL's noise schedule.
    noise = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=options.learning_rate)
    processes = accelerator.num_processes
    # A scheduler that accelerate has prepared advances by `processes` steps per optimizer step.
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, options.steps * processes)
    pictures = Pictures(options.steps * options.batch_size * processes, sizes, options.seed)
    # Do not shuffle: the images are random anyway, and a resumed run must see them in the same
    # order. The loader has a separate generator, because drawing from the global generator would
    # change a resumed run.
    loader = DataLoader(pictures, batch_size=options.batch_size, generator=torch.Generator())
    model, optimizer, schedule, loader = accelerator.prepare(unet, optimizer, schedule, loader)

    set_seed(options.seed, device_specific=True)
    done = resume(accelerator, options.run_dir)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    if accelerator.is_main_process:
        before = held_out_loss(unet, noise, sizes, accelerator.device)
        emit("resume" if done else "start", step=done, processes=processes, held_out_loss=before)

    step = done
    for step, batch in enumerate(accelerator.skip_first_batches(loader, done), done + 1):
        loss = train_step(accelerator, model, optimizer, schedule, noise, batch)
        if step % options.log_every == 0:
            report(accelerator, step, loss)
        if stop:
            accelerator.set_trigger()
        if accelerator.check_trigger():  # true in all processes if any of them received SIGTERM
            save(accelerator, options.run_dir, step)
            if accelerator.is_main_process:
                conclude("interrupted", step=step)
            return exit_codes.INTERRUPTED
        if step % options.checkpoint_every == 0:
            save(accelerator, options.run_dir, step)

    if accelerator.is_main_process:
        export(accelerator.unwrap_model(model), options.run_dir)
        after = held_out_loss(unet, noise, sizes, accelerator.device)
        conclude("finished", step=step, held_out_loss=after, export=options.run_dir / "export")
    accelerator.end_training()
    return exit_codes.DONE


def load_unet(directory: Path | None) -> UNet2DConditionModel:
    """Return the UNet in a directory, or a tiny UNet with SDXL's architecture.

    Raise ConfigurationError if the directory does not contain a UNet.
    """
    if directory is not None:
        try:
            return UNet2DConditionModel.from_pretrained(
                directory, use_safetensors=True, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"--unet {directory} is not a UNet saved by diffusers: {error}"
            ) from None
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=1,
        attention_head_dim=(2, 4),
        norm_num_groups=8,
        use_linear_projection=True,
        cross_attention_dim=32,
        addition_embed_type="text_time",
        addition_time_embed_dim=TIME_WIDTH,
        projection_class_embeddings_input_dim=CAPTION_WIDTH + 6 * TIME_WIDTH,
    )


def input_sizes(unet: UNet2DConditionModel) -> Sizes:
    """Return the UNet's input sizes. Raise ConfigurationError if the UNet is not SDXL-style."""
    config = unet.config
    if config.addition_embed_type != "text_time" or config.in_channels != 4:
        raise ConfigurationError(
            f"the UNet has addition_embed_type {config.addition_embed_type} and "
            f"{config.in_channels} input channels; an SDXL-style UNet has text_time and 4 channels"
        )
    caption = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    return Sizes(config.sample_size, config.cross_attention_dim, caption)


def diffusion_loss(model: nn.Module, noise: DDPMScheduler, batch: Batch) -> Tensor:
    """Return the mean squared error of the predicted noise (Ho et al., arXiv:2006.11239)."""
    clean = batch["latent"]
    added = torch.randn_like(clean)
    times = torch.randint(0, noise.config.num_train_timesteps, clean.shape[:1], device=clean.device)
    predicted = model(
        noise.add_noise(clean, added, times),
        times,
        encoder_hidden_states=batch["words"],
        added_cond_kwargs={"text_embeds": batch["caption"], "time_ids": batch["time_ids"]},
    ).sample
    return mse_loss(predicted.float(), added.float())


def train_step(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    noise: DDPMScheduler,
    batch: Batch,
) -> Tensor:
    """Run one optimizer step and return the scalar loss for this process's images."""
    model.train()
    loss = diffusion_loss(model, noise, batch)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.detach()


@torch.no_grad()
def held_out_loss(
    unet: UNet2DConditionModel, noise: DDPMScheduler, sizes: Sizes, device: torch.device
) -> float:
    """Return the loss on held-out images, always with the same noise."""
    unet.eval()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        pictures = Pictures(HELD_OUT_IMAGES, sizes, seed=2**31)
        batch = next(iter(DataLoader(pictures, batch_size=HELD_OUT_IMAGES)))
        loss = diffusion_loss(
            unet, noise, {name: value.to(device) for name, value in batch.items()}
        )
    return round(float(loss), 6)


def report(accelerator: Accelerator, step: int, loss: Tensor) -> None:
    """Report the mean loss over all processes. Raise ConfigurationError if it is not finite."""
    mean = float(accelerator.reduce(loss, "mean"))
    if not math.isfinite(mean):
        raise ConfigurationError(
            f"the loss became {mean} at or before step {step}: lower --learning-rate"
        )
    if accelerator.is_main_process:
        emit("step", step=step, loss=round(mean, 6))


def save(accelerator: Accelerator, run_dir: Path, step: int) -> None:
    """Save the state of all processes atomically, and remove earlier checkpoints."""
    directory = run_dir / "checkpoints"
    unfinished, target = directory / f".step-{step:08d}.tmp", directory / f"step-{step:08d}"
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        sync_folder(directory)
        for other in directory.iterdir():
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
    accelerator.wait_for_everyone()


def resume(accelerator: Accelerator, run_dir: Path) -> int:
    """Load the latest checkpoint and return its step, or 0 if there is none.

    Raise ConfigurationError if the checkpoint cannot be loaded, for example because it was saved
    from a different UNet, and OSError if it cannot be read.
    """
    checkpoints = list_checkpoints(run_dir / "checkpoints")
    if not checkpoints:
        return 0
    try:
        accelerator.load_state(str(checkpoints[-1]))
    except OSError:
        raise
    except Exception as error:  # each file format raises different errors
        raise ConfigurationError(f"cannot resume from {checkpoints[-1]}: {error}") from None
    return step_of(checkpoints[-1])


def export(unet: UNet2DConditionModel, run_dir: Path) -> None:
    """Write the UNet atomically in diffusers' format."""
    unfinished, target = run_dir / ".export.tmp", run_dir / "export"
    unet.save_pretrained(unfinished / "unet", safe_serialization=True)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    sync_folder(run_dir)
