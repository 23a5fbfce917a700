"""The failure recorder, which archives the last log lines and events of failed pods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi

from infra.api_client import ApiClient
from infra.component import Component
from infra.manifests import RECORDER, Manifest
from infra.outputs import SharedResources
from infra.pods import GpuNodes, Mount, Pod
from infra.settings import StackSettings
from infra.settings.monitoring import RecorderSettings
from infra.settings.problems import choice

CLAIMS_PATH: Final = "/claims"
# The old pod runs until the new one is ready, because a gap would leave failures unrecorded.
# Meanwhile, both pods write the same files, which is harmless.
_STRATEGY: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
_READ_RULES: Final = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]


@dataclass(frozen=True, kw_only=True)
class FailureRecorderArgs:
    """Recorder settings, claim names, and the image (a string or a Pulumi output)."""

    recorder: RecorderSettings
    namespace: str
    image: Any
    claims: Mapping[str, str]
    gpu_nodes: GpuNodes
    isolated: bool = False
    pull_secret: str | None = None

    @classmethod
    def of(cls, settings: StackSettings, shared: SharedResources) -> Self:
        """Build the arguments from the settings of a stack that has `logs.recorder`."""
        recorder = settings.logs.recorder or RecorderSettings()
        return cls(
            recorder=recorder,
            namespace=shared.namespace,
            image=shared.images[recorder.image],
            claims=shared.claims,
            gpu_nodes=shared.gpu_nodes,
            isolated=settings.tenancy.network.isolate,
            pull_secret=shared.pull_secret,
        )


class FailureRecorder(Component):
    """A Deployment with one pod and read-only API access. Pulumi does not wait for the pod."""

    def __init__(
        self, name: str, args: FailureRecorderArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        # The stack has already validated its settings. Other Pulumi programs may not have done so.
        for key in args.recorder.claims:
            if key not in args.claims:
                raise pulumi.RunError(
                    f"recorder.claims of {name!r} contains {key!r}, which is not a key of claims: "
                    f"{choice(args.claims)}."
                )
        super().__init__("FailureRecorder", name, opts)
        self.create_in_order(name, manifests(args))
        self.register_outputs({})


def manifests(args: FailureRecorderArgs) -> list[Manifest]:
    """Return the objects in the order of creation."""
    client = ApiClient(name=RECORDER, namespace=args.namespace)
    ports = args.recorder.api_ports
    return [
        client.account(args.pull_secret),
        client.role(_READ_RULES),
        client.binding(),
        *([client.allow_ports(ports)] if args.isolated else []),
        client.deployment(_pod(client, args), _STRATEGY),
    ]


def _pod(client: ApiClient, args: FailureRecorderArgs) -> Pod:
    settings = args.recorder
    limits = {name: getattr(settings, name) for name in ("lines", "kib", "failures", "pods")}
    names = [args.claims[key] for key in settings.claims]
    return client.pod(
        "recorder",
        args.gpu_nodes,
        image=args.image,
        cpu=settings.cpu,
        memory=settings.memory,
        command=[
            *("python3", "-m", "recorder", "watch", f"--claims={CLAIMS_PATH}"),
            *(f"--{name}={value}" for name, value in limits.items()),
        ],
        mounts=[
            Mount(name=f"claim-{number}", claim=name, path=f"{CLAIMS_PATH}/{name}")
            for number, name in enumerate(names)
        ],
        node_selector=settings.node_selector,
    )
