"""The component that runs the hyperparameter sweeps of a stack."""

from collections.abc import Mapping

import pulumi

from infra.component import Component
from infra.outputs import SharedResources
from infra.settings import StackSettings
from infra.sweep import Price, Sweep, SweepControllerArgs, controller_manifests, plan, template
from infra.training_run import TrainingJobArgs


class SweepController(Component):
    """The templates of the sweeps, and the Deployment that runs their trials.

    The trials are not resources of the stack, and Pulumi does not wait for them.
    """

    def __init__(
        self, name: str, args: SweepControllerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("SweepController", name, opts)
        templates = [
            self.create(f"{name}-template-{key}", template(sweep))
            for key, sweep in args.sweeps.items()
        ]
        self.create_in_order(name, controller_manifests(args), after=templates)
        self.register_outputs({})


def sweeps(
    settings: StackSettings, shared: SharedResources, prices: Mapping[str, Price]
) -> dict[str, Sweep]:
    """Return the sweeps of a stack by key. `prices` maps these keys to the prices of trials."""
    return {
        key: Sweep(
            settings=sweep,
            args=TrainingJobArgs.of(key, sweep.job, shared),
            labels=settings.cluster.labels,
            annotations=settings.cluster.annotations,
            price=prices.get(key),
        )
        for key, sweep in settings.training.sweeps.items()
    }


def sweep_args(
    settings: StackSettings, stack_sweeps: Mapping[str, Sweep], shared: SharedResources
) -> SweepControllerArgs:
    """Build the arguments from the settings of a stack with sweeps."""
    return SweepControllerArgs(
        controller=settings.training.sweep_controller,
        sweeps=stack_sweeps,
        plan=pulumi.Output.json_dumps(plan(stack_sweeps), sort_keys=True),
        namespace=shared.namespace,
        image=shared.images[settings.training.sweep_controller.image],
        claims=shared.claims,
        gpu_nodes=shared.gpu_nodes,
        isolated=settings.tenancy.network.isolate,
        pull_secret=shared.pull_secret,
    )
