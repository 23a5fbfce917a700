"""On which nodes pods go."""

from infra.settings.volcano import SchedulerSettings
from tests.cluster.gangs import PATIENCE, RACK, VOLCANO, placed
from tests.cluster.platform import await_
from tests.cluster.scheduling import Scheduling, stack


def test_binpack_keeps_nodes_free_for_a_gang_and_spread_does_not(volcano: Scheduling) -> None:
    small = {f"small-{n}": {"queue": "vision", "gpus_per_node": 2} for n in range(3)}
    jobs = stack(small | {"gang": {"queue": "vision", "nodes": 2}}, **VOLCANO)
    for placement, gang in (("spread", {}), ("binpack", {"gang": 2})):
        volcano.configure(SchedulerSettings.model_validate({"placement": placement}))
        volcano.submit(jobs, *small)
        placed(volcano, small_0=1, small_1=1, small_2=1)
        nodes = {node for job in small for node in volcano.nodes(job)}
        assert len(nodes) == (1 if gang else 3)
        volcano.submit(jobs, "gang")
        placed(volcano, small_0=1, small_1=1, small_2=1, **gang)
        volcano.clear()


def test_a_job_on_whole_nodes_shares_them_with_no_other(volcano: Scheduling) -> None:
    half = {"queue": "vision", "gpus_per_node": 4}
    jobs = stack(
        {
            "before": half,
            "alone": {**half, "nodes": 2, "whole_node": True},
            "after": half,
            "last": half,
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "before")
    placed(volcano, before=1)
    volcano.submit(jobs, "alone")
    placed(volcano, before=1, alone=2)
    volcano.submit(jobs, "after")
    placed(volcano, before=1, alone=2, after=1)
    volcano.submit(jobs, "last")
    placed(volcano, before=1, alone=2, after=1)
    assert volcano.nodes("after") == volcano.nodes("before")
    assert len({*volcano.nodes("alone"), *volcano.nodes("before")}) == 3


def test_pods_of_a_gang_follow_the_first_one_to_its_rack(volcano: Scheduling) -> None:
    """Rack a has room for one pod more, and rack b for both."""
    half = {"queue": "vision", "gpus_per_node": 4}
    pair = {**half, "nodes": 2}
    jobs = stack(
        {
            "filler": {**half, "node_selector": {RACK: "a"}},
            "must": {**pair, "pack": {"label": RACK, "required": True}},
            "may": {**pair, "pack": {"label": RACK}},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "filler")
    placed(volcano, filler=1)
    volcano.submit(jobs, "may")
    placed(volcano, filler=1, may=2)
    assert volcano.nodes("filler")[0] in volcano.nodes("may")
    volcano.delete("may")
    volcano.submit(jobs, "must")
    reason = "didn't match pod affinity rules"
    await_(lambda: reason in volcano.devcluster("status"), PATIENCE, reason)
    placed(volcano, filler=1)
    volcano.configure(SchedulerSettings(placement="spread"))
    placed(volcano, filler=1, must=2)
    assert volcano.nodes("must") == ["simulated-1", "simulated-2"]
