"""One training run: whether it learns, how fast, and where its time goes."""

from infra.observability.dashboards.page import Page, Panel, Variable
from infra.settings.monitoring import MonitoringSettings

_RUN = '{namespace=~"$namespace", run=~"$run"}'
_STEP_P99 = (
    f"histogram_quantile(0.99, sum by (run, le) (rate(training_step_seconds_bucket{_RUN}[5m])))"
)


def page(settings: MonitoringSettings) -> Page:
    """The page."""
    del settings
    return Page(
        "Training run",
        {
            "Now": [
                Panel("Step", {"{{run}}": f"max by (run) (training_step{_RUN})"}, shape="number"),
                Panel("Epoch", {"{{run}}": f"max by (run) (training_epoch{_RUN})"}, shape="number"),
                Panel(
                    "Accuracy",
                    {"{{run}}": f"max by (run) (training_accuracy{_RUN})"},
                    "percentunit",
                    "number",
                ),
                Panel(
                    "GPUs",
                    {"{{run}}": f"sum by (run) (gpu_platform:run_gpus{_RUN})"},
                    shape="number",
                ),
            ],
            "Whether it learns": [
                Panel(
                    "Loss",
                    {
                        "{{run}} {{pod}}": f"training_loss{_RUN}",
                        "{{run}} held out": f"max by (run) (training_held_out_loss{_RUN})",
                    },
                ),
                Panel(
                    "Norm of the gradient",
                    {"{{run}}": f"max by (run) (training_gradient_norm{_RUN})"},
                ),
                Panel("Learning rate", {"{{run}}": f"max by (run) (training_learning_rate{_RUN})"}),
            ],
            "How fast": [
                Panel(
                    "Samples per second",
                    {"{{run}}": f"max by (run) (training_samples_per_second{_RUN})"},
                ),
                Panel("Slowest step of a hundred", {"{{run}}": _STEP_P99}, "s"),
                Panel(
                    "Goodput",
                    {"{{run}}": f"gpu_platform:run_goodput{_RUN}"},
                    "percentunit",
                    about="share of the time of the pods with GPUs that goes into steps",
                ),
            ],
            "Where the time goes": [
                Panel(
                    "Activities",
                    {"{{activity}}": f"sum by (activity) (rate(training_seconds_total{_RUN}[5m]))"},
                    "percentunit",
                    "stack",
                ),
                Panel(
                    "Steps that a crash would cost",
                    {
                        "{{run}}": f"max by (run) (training_step{_RUN} "
                        f"- training_checkpoint_step{_RUN})"
                    },
                ),
                Panel(
                    "Shared memory",
                    {"{{pod}}": f"training_shm_used_bytes{_RUN} / training_shm_size_bytes{_RUN}"},
                    "percentunit",
                ),
            ],
        },
        [
            Variable("namespace", "label_values(training_info, namespace)"),
            Variable(
                "run", 'label_values(training_info{namespace=~"$namespace"}, run)', several=False
            ),
        ],
    )
