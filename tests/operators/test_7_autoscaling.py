"""Autoscaling of a service by KEDA under load, from zero pods to the maximum and back.

Gateway, Prometheus, KEDA, the control plane's autoscaler and the model servers are real.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from devcluster.images.catalog import ToolImage
from devcluster.spec import Kind, cluster_spec
from tests.cluster.load import Load, inference_request
from tests.cluster.platform import UPDATE, Platform, await_
from tests.operators import gateway, prometheus
from tests.training.programs import free_port

NOBODY = "65532:65532"
IMAGES = (
    ToolImage("kedacore/keda:2.18.1", "keda", "/keda", NOBODY),
    ToolImage("kedacore/keda-metrics-apiserver:2.18.1", "keda-adapter", "/keda-adapter", NOBODY),
)
INTERVAL = 2
MAXIMUM = 3
TARGET = 4
# The query of docs/inference-rollout.md, for another namespace and a shorter time.
ARRIVING = 'sum(rate(traefik_router_requests_total{router=~"httproute-ml-dev-digits-.*"}[20s]))'
# A batch takes as long as with a large model on a GPU, but three pods need only a few cores.
HANDLER = """
import time

from inference.engine.handlers import Classifier


class Large(Classifier):
    def predict(self, decoded):
        time.sleep(0.1)
        return super().predict(decoded)
"""


@dataclass
class Scaled:
    """A service that KEDA scales, and the gateway in front of it."""

    platform: Platform
    url: str

    @property
    def infer(self) -> str:
        return f"{self.url}/v2/models/digits/infer"

    def pods(self) -> int:
        """Return the number of pods that the Deployment has or is still starting."""
        return self._status("replicas")

    def ready(self) -> int:
        return self._status("readyReplicas")

    def _status(self, name: str) -> int:
        found = self.platform.kubectl("get", "deployment", "digits", "-n", "ml-dev")
        return int(found["status"].get(name, 0))

    def conditions(self) -> dict[str, str]:
        """Return the conditions of the ScaledObject."""
        found = self.platform.kubectl("get", "scaledobjects.keda.sh", "digits", "-n", "ml-dev")
        return {each["type"]: each["status"] for each in found["status"]["conditions"]}


def configure(config: dict[str, Any], served: str) -> None:
    """Serve a finished run behind the gateway, with KEDA."""
    config["gpu-platform:monitoring"] |= {"prometheus": "plain", "interval_seconds": INTERVAL}
    config["gpu-platform:inference"]["services"] = {
        "digits": {
            "run": served,
            "priority_class": "serving",
            "gpus": 1,
            "cpu": "100m",
            "memory": "768Mi",
            "server": {"handler": "large:Large", "max_batch": 16},
            "volumes": {"handlers": {"path": "/handlers", "config_map": "handlers"}},
            "env": {"PYTHONPATH": "/handlers"},
            "route": {"gateway": {"name": gateway.GATEWAY, "namespace": gateway.NAMESPACE}},
            "autoscaling": {
                "min": 0,
                "max": MAXIMUM,
                "requests_in_flight": TARGET,
                "keda": {
                    "prometheus": f"http://prometheus.{prometheus.NAMESPACE}:9090",
                    "cooldown_seconds": 10,
                    "activation_query": ARRIVING,
                },
            },
        }
    }


def handlers() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "handlers", "namespace": "ml-dev"},
        "data": {"large.py": HANDLER},
    }


@pytest.fixture(scope="module")
def scaled(real: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaled]:
    real.reset()
    real.hyperparameters(epochs=10)
    assert "(correct)" in real.make("up")
    served, before = real.run_name(), real.stack_file.read_text()
    prometheus.push_images(real.state)
    prometheus.namespace(real)
    (keda,) = prometheus.push_images(real.state, IMAGES, "keda").manifests["keda"]
    real.shell(f"kubectl apply --server-side --kustomize {keda}")
    metrics = f"{cluster_spec(Kind.REAL).network.host}:{free_port()}"
    try:
        with gateway.running(real, tmp_path_factory.mktemp("gateway"), metrics) as url:
            real.shell(
                "kubectl wait --for=condition=Available deployment --all -n keda --timeout=600s"
            )
            prometheus.apply(real, [handlers()])
            real.edit(lambda config: configure(config, served))
            real.shell(UPDATE)
            prometheus.start(real, INTERVAL, [metrics])
            yield Scaled(real, url)
    finally:
        real.stack_file.write_text(before)
        real.shell(UPDATE)
        prometheus.stop(real)
        real.shell(f"kubectl delete --ignore-not-found --wait=false --kustomize {keda}")


def test_pods_scale_with_the_load_from_zero_to_the_maximum_and_back(scaled: Scaled) -> None:
    await_(lambda: scaled.pods() == 0, "no pod without requests")
    idle = {"Ready": "True", "Active": "False"}
    await_(lambda: idle.items() <= scaled.conditions().items(), "KEDA's first query")

    with Load(scaled.infer, inference_request(), clients=1, pause=0.5) as few:
        await_(lambda: scaled.ready() == 1, "a pod for the first requests")
        await_(lambda: few.seen().answered > 0, "an answer")
        assert few.seen().failed.keys() <= {"503", "404"}
        assert few.seen().failed
        few.during(lambda: None, at_least=20)
        assert scaled.pods() == 1

        with Load(scaled.infer, inference_request(), clients=4 * TARGET, pause=0.0) as many:
            await_(lambda: scaled.ready() == MAXIMUM, "the maximum of pods for many requests")
            served = many.during(lambda: None, at_least=100)
            assert served.failed == {}

    await_(lambda: scaled.pods() == 0, "no pod after the last request")
