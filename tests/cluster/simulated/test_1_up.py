"""`make up NODES=simulated`: real Volcano, and nodes that run no containers."""

import shlex

import pytest

from tests.cluster.gangs import MALFORMED_QUEUE, WEBHOOK
from tests.cluster.platform import Platform, await_, created


def test_make_up_deploys_the_stack_and_schedules_the_gangs(simulated: Platform) -> None:
    output = simulated.make("up")
    assert created(output) > 20
    assert "with the policy pack: accepted" in output
    assert output.count("pods scheduled together") == 2


def test_gang_with_sixteen_gpus_is_placed_by_volcano_on_two_nodes(simulated: Platform) -> None:
    pods = simulated.pods(simulated.run_name())
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


def test_volcanos_webhooks_reject_malformed_queues(simulated: Platform) -> None:
    assert WEBHOOK in simulated.refusal(MALFORMED_QUEUE)


def test_volcanos_webhooks_recover_after_a_crash(simulated: Platform) -> None:
    simulated.process("vc-webhook-manager").kill()
    await_(lambda: WEBHOOK in simulated.refusal(MALFORMED_QUEUE), "the webhooks")


def test_down_stops_the_cluster_but_keeps_its_state(simulated: Platform) -> None:
    assert "stopped the simulated cluster" in simulated.make("down")
    assert "unchanged" in simulated.make("up")


@pytest.mark.parametrize("after", ["restart", "crash"])
def test_simulated_pods_start_and_end_immediately_after_a_restart_or_crash(
    simulated: Platform, after: str
) -> None:
    if after == "crash":
        simulated.process("kwok").kill()
    place = shlex.quote('{"spec": {"nodeName": "simulated-0"}}')
    simulated.shell(f"kubectl run after-{after} --image=none --overrides={place}")
    phase = "--for=jsonpath={.status.phase}=Running"
    simulated.shell(f"kubectl wait {shlex.quote(phase)} pod/after-{after} --timeout=600s")
    simulated.shell(f"kubectl delete pod after-{after} --timeout=600s")
