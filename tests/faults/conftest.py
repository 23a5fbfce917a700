"""One cluster for all faults: the stack's run is the reference, and its server is under load."""

from collections.abc import Iterator

import pytest

from tests.cluster.load import Load, inference_request
from tests.cluster.platform import ROOT, Platform
from tests.faults.arena import JOBS, NAMESPACE, Arena
from tests.faults.losses import CLIENTS, Losses
from tests.faults.table import Table
from tests.faults.units import Units

TRAINED = {"epochs": 10, "step_delay": 0.04, "log_every": 1, "peer_timeout": 25}
PAUSE = 0.1


@pytest.fixture(scope="session")
def arena(real: Platform) -> Iterator[Arena]:
    """Deploy the stack, wait for its run, and serve its export with two replicas."""
    real.reset()
    real.hyperparameters(**TRAINED)
    real.edit(
        lambda config: config["gpu-platform:inference"]["services"]["digits"].update(replicas=2)
    )
    assert "(correct)" in real.make("up")
    # Pods that failed in earlier tests of this cluster stay until they are deleted.
    real.shell(f"kubectl delete pods -n {NAMESPACE} --field-selector=status.phase=Failed")
    run, units = real.run_name(), Units(real.state / "real")
    job = real.kubectl("get", JOBS, run, "-n", NAMESPACE)
    job = {key: job[key] for key in ("apiVersion", "kind", "spec", "metadata")}
    job["metadata"] = {key: job["metadata"][key] for key in ("name", "namespace", "labels")}
    service = real.kubectl("get", "service", "digits", "-n", NAMESPACE)["spec"]
    url = f"http://{service['clusterIP']}:{service['ports'][0]['port']}/v2/models/digits/infer"
    with Load(url, inference_request(), CLIENTS, PAUSE) as load:
        table = Table(ROOT / ".bench")
        losses = Losses.of(real.logs(run))
        made = Arena(real, real.shell_environment, units, job, losses, load, table)
        made.settle()
        yield made
    table.draw()
