"""Settings of a training run: names, types, defaults and descriptions.

This module does not import torch.
"""

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from workload import custom
from workload.catalog import MODELS, ModelName, Option
from workload.configuration import DeviceName

DatasetName = Literal[
    "digits", "glyphs", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic",
    "shards", "text", "tokens",
]  # fmt: skip
TEXTS: Final[tuple[DatasetName, ...]] = ("text", "tokens")
IMAGES: Final[tuple[DatasetName, ...]] = tuple(
    name for name in get_args(DatasetName) if name not in TEXTS
)
PUBLISHED: Final[tuple[DatasetName, ...]] = ("mnist", "fashion-mnist", "cifar10", "cifar100")
PREPARED: Final[tuple[DatasetName, ...]] = ("shards", "tokens")
"""Data sets from `python -m training.data prepare`; each is in data_dir/<name>."""
ExportFormat = Literal["pt2"]
Tracking = Literal["mlflow", "wandb"]

CROSS_ENTROPY: Final = "cross-entropy"


def _known_or_custom(custom_format: str, *known: str) -> AfterValidator:
    def validate(name: str) -> str:
        if name not in known and not custom.NAME_PATTERN.fullmatch(name):
            raise ValueError(f"use {', '.join((*known, custom_format))}")
        return name

    return AfterValidator(validate)


CustomName = Annotated[str, _known_or_custom("package.module:function")]
LossName = Annotated[
    str, _known_or_custom("or a custom function as package.module:function", CROSS_ENTROPY)
]
AnyDataset = Annotated[
    str,
    _known_or_custom("or a custom data set as package.module:factory", *get_args(DatasetName)),
]

Beta = Annotated[float, Field(ge=0, lt=1)]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Linear layers of a Llama model, by the names that PEFT uses."""

PositiveInt = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1, le=2**53)]


class TrainingSettings(BaseModel):
    """Settings of one training run, each validated independently."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    model: ModelName = Field(
        default="simple-cnn",
        description="Model to train, with its input in parentheses: "
        + "; ".join(f"{name} ({known.input_description})" for name, known in MODELS.items())
        + "; or a custom model, written as package.module:factory. Smaller images are enlarged.",
    )
    model_options: dict[str, Option] = Field(default_factory=dict)
    """Options of the model, such as '{"layers": 6, "context": 512}' for gpt, which also has the
    `heads`, `width` and `dropout` options. ResNets have the `image_size` option. A custom model may
    have any option. On the command line, write the options as a JSON object."""
    init_from: PurePosixPath | None = None
    """Directory with the initial weights of a new run: a finished run, an export, or the Hugging
    Face directory of a Llama model (model gpt). A run that resumes ignores this setting."""
    init_sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Expected SHA-256 of the weights of init_from: the digest in its manifest or, for a Hugging
    Face directory, the digest of its safetensors files."""
    init_partial: bool = False
    """Load only the tensors of init_from that fit the model, and report the tensors that do not. If
    false, all tensors must fit."""
    init_adapter: PurePosixPath | None = None
    """PEFT directory of a LoRA adapter for the weights of init_from (model gpt). With lora_rank, a
    new run continues to train the adapter; otherwise, the adapter is first merged into the weights.
    A run that resumes ignores this setting."""
    lora_rank: int = Field(default=0, ge=0, le=4096)
    """Rank of LoRA adapters, which are trained instead of the weights of init_from and merged into
    them on export (model gpt). 0 trains all weights."""
    lora_alpha: float = Field(default=16, gt=0)
    """Scale of LoRA adapters: their output is multiplied by lora_alpha / lora_rank."""
    lora_dropout: float = Field(default=0, ge=0, lt=1)
    """Dropout probability of the inputs of LoRA adapters."""
    lora_targets: tuple[LoraTarget, ...] = Field(
        default=("q_proj", "v_proj"),
        min_length=1,
        description="Layers with a LoRA adapter, by their names in a Llama model: "
        + ", ".join(get_args(LoraTarget))
        + ".",
    )
    dataset: AnyDataset = Field(
        default="digits",
        description="Data set. `digits` and `glyphs` need no files, and `synthetic` is generated "
        "from the seed. `shards`, `text`, `tokens` and published data "
        "sets ("
        + ", ".join(PUBLISHED)
        + ") are read from data_dir. A custom data set is written as package.module:factory.",
    )
    data_dir: PurePosixPath = PurePosixPath("/data")
    """Directory of data sets. Only download and data_url write to it."""
    data_url: str | None = None
    """Directory of the prepared data set (dataset shards or tokens) in an object store, such as
    s3://datasets/books. One process per node downloads it to data_dir, which must be writable, and
    verifies it."""
    download: bool = False
    """Download mnist, fashion-mnist, cifar10 or cifar100 to data_dir first."""
    loader_workers: int = Field(default=0, ge=0, le=256)
    """Data loader processes per training process. 0 reads data in the training process."""
    run_dir: PurePosixPath = PurePosixPath("/checkpoints/run")
    """Directory of this run on storage that all processes share. checkpoints/ and export/ are
    written there, and the run resumes from it."""
    run_url: str | None = None
    """Directory of runs in an object store, such as s3://models/runs. Checkpoints are copied to
    <run_url>/<name of run_dir> in the background; the export is copied at the end. If run_dir has
    no intact checkpoint, the run resumes from this copy."""
    epochs: PositiveInt = 10
    """Length of the run in passes over the training data. Set at most one of epochs, train_steps,
    train_samples and train_tokens."""
    train_steps: Length | None = None
    """Length of the run in optimizer steps, instead of epochs."""
    train_samples: Length | None = None
    """Length of the run in samples over all processes, instead of epochs. The last step may be
    smaller."""
    train_tokens: Length | None = None
    """Length of the run in tokens of text, rounded up to complete samples, instead of epochs."""
    batch_size: PositiveInt = 64
    """Samples per process and batch."""
    accumulate: PositiveInt = 1
    """Batches per process and optimizer step (gradient accumulation)."""
    loss: LossName = CROSS_ENTROPY
    """Loss to minimize: cross-entropy, or a custom function as package.module:function. A
    custom function takes logits and targets and returns one value per sample."""
    metrics: tuple[CustomName, ...] = ()
    """Custom metrics on the held-out data, each as package.module:function, which takes logits and
    targets and returns one value per sample. Their means are reported."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer; `sgd` uses Nesterov momentum 0.9."""
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    """Peak learning rate of the schedule."""
    schedule: Literal["one-cycle", "linear", "constant"] = "one-cycle"
    """Learning rate after the warm-up: cosine decay, linear decay, or constant."""
    warm_up: float = Field(default=0.2, ge=0, lt=1)
    """Fraction of the run during which the learning rate rises to its peak."""
    weight_decay: float = Field(default=1e-4, ge=0, le=1)
    """Weight decay; decoupled with `adamw`."""
    weight_decay_on: Literal["all", "matrices"] = "all"
    """Parameters with weight decay: all, or only matrices (two or more dimensions), which excludes
    biases and the scales of norms."""
    betas: tuple[Beta, ...] = Field(default=(0.9, 0.999), min_length=2, max_length=2)
    """Decay rates of the moving averages of the gradient and of its square (adamw)."""
    ema_decay: float = Field(default=0, ge=0, lt=1)
    """Decay per step, such as 0.999, of an exponential moving average of the weights, which is
    evaluated and exported in their place. 0 disables it."""
    clip_norm: float = Field(default=0, ge=0)
    """Maximum global gradient norm (clipping). 0 disables clipping."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed for weights, dropout, sample order and synthetic data."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """`ddp` replicates the model in every process; `fsdp` (FSDP2) shards it."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast precision. `auto` is `bf16` on a GPU that supports it, otherwise `fp32`. Weights
    stay fp32; `fp16` scales the loss."""
    compile: bool = False
    """Compile the model with torch.compile: slower start, faster steps."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, slower steps."""
    gradient_compression: Literal["none", "bf16", "fp16"] = "none"
    """Data type of the gradients that processes exchange (ddp only)."""
    evaluate_steps: int = Field(default=0, ge=0)
    """Steps between two evaluations within an epoch. 0 disables them."""
    evaluate_samples: int = Field(default=0, ge=0)
    """Maximum number of held-out samples per evaluation, evenly spaced. 0 uses all. The finished
    model is always evaluated on all held-out samples."""
    checkpoint_every: PositiveInt = 1
    """Epochs between two checkpoints."""
    checkpoint_steps: int = Field(default=0, ge=0)
    """Steps between two checkpoints within an epoch. 0 disables them."""
    checkpoint_async: bool = True
    """Write checkpoints in the background; training waits only while the state is copied."""
    keep_checkpoints: PositiveInt = 3
    """Number of newest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the evaluated checkpoint with the lowest held-out loss."""
    log_every: int = Field(default=0, ge=0)
    """Steps between two progress lines. 0 writes one line per epoch."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Port on which the first process of every node serves Prometheus metrics. 0 disables the
    port."""
    device: DeviceName = "auto"
    """Device; `auto` uses a GPU if one is available."""
    start_timeout: float = Field(default=600, gt=0, le=86_400)
    """Timeout in seconds for connecting all processes and for the first step, which may include
    compilation. Data checks have no timeout."""
    peer_timeout: float = Field(default=60, gt=0, le=86_400)
    """Timeout in seconds for collective operations after the first step. Operations that wait for
    files may take longer."""
    hang_timeout: float = Field(default=1800, ge=0, le=86_400)
    """Seconds without progress (a step, a batch of the evaluation, a checkpoint, …) after which a
    process dumps all stacks and exits with code 76. 0 disables the watchdog. Unless hang_timeout is
    set, a longer start_timeout or peer_timeout replaces the default."""
    preflight: Literal["auto", "off", "report", "strict"] = "auto"
    """Measurements that find a slow node before the first step of a gang of three or more
    processes. `report` logs the node; `strict` also exits with code 69; `off` disables the
    measurements; `auto` is `report` on the CPU and `off` on GPUs."""
    tensorboard: bool = False
    """Write TensorBoard event files to run_dir/tensorboard."""
    track: tuple[Tracking, ...] = ()
    """Services that receive a copy of the progress lines: mlflow, wandb. Their packages must be in
    the image. Configure each service with environment variables such as MLFLOW_TRACKING_URI."""
    profile_steps: int = Field(default=0, ge=0, le=1000)
    """Steps to profile; traces are written to run_dir/profile. 0 disables profiling."""
    profile_after: int = Field(default=10, ge=0)
    """Number of steps that a process runs before profiling begins."""
    export_formats: tuple[ExportFormat, ...] = ()
    """Formats in which to export the model in addition to the weights: pt2 (torch.export)."""
    prune: float = Field(default=0, ge=0, lt=1)
    """Fraction of the weights in linear layers and convolutions to set to 0 (pruning) in an
    additional artifact of the export. The weights with the smallest magnitude are pruned. 0
    disables this artifact."""
    quantize: Literal["none", "static", "dynamic", "weight-only"] = "none"
    """Also export an int8-quantized model: `static` for CNNs, `dynamic` or `weight-only` for
    linear layers."""
    step_delay: float = Field(default=0, ge=0, le=60)
    """Seconds to sleep after each step, to demonstrate interruptions with a small data set."""
