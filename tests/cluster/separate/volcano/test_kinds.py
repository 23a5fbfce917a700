"""Job kinds that are Volcano Jobs."""

from tests.cluster.platform import await_
from tests.cluster.scheduling import Scheduling
from tests.infra.jobs import configuration, job, objects, surrounding_objects

KINDS = ("volcano", "mpi", "tensorflow", "plain")


def test_every_volcano_job_kind_is_scheduled_and_completes(volcano: Scheduling) -> None:
    needed = ("Queue", "PriorityClass", "ServiceAccount")
    around = surrounding_objects(configuration(job("volcano")))
    volcano.apply(*(made for made in around if made["kind"] in needed))
    completed = {f"{kind}-0123abcd": "Completed" for kind in KINDS}
    for kind in KINDS:
        volcano.apply(*objects(job(kind, datasets=None), f"{kind}-0123abcd"))

    def phases() -> dict[str, str]:
        return {
            made["metadata"]["name"]: made.get("status", {}).get("state", {}).get("phase", "")
            for made in volcano.all("jobs.batch.volcano.sh")
        }

    await_(lambda: phases() == completed, "all kinds are completed")
    volcano.clear()
    volcano.delete_queue("research")
