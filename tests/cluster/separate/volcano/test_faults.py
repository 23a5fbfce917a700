"""Gangs after the failure of one of their pods."""

import re
import shlex

from devcluster.nodes.init import delete_lost_pods
from gitops.runs.waiting import waiting
from tests.cluster.gangs import VOLCANO, placed
from tests.cluster.platform import await_
from tests.cluster.scheduling import NAMESPACE, Scheduling, stack


def test_a_gang_restarts_until_its_retries_are_exhausted_or_an_exit_code_is_fatal(
    volcano: Scheduling,
) -> None:
    job = {"queue": "vision", "gpus_per_node": 2, "nodes": 2, "retries": 2}
    jobs = stack({"wrong": job, "unlucky": job}, **VOLCANO)
    volcano.submit(jobs, "wrong", "unlucky")
    placed(volcano, wrong=2, unlucky=2)
    volcano.fail(volcano.pods("wrong")[0], 64)
    first = {pod["metadata"]["uid"] for pod in volcano.pods("unlucky")}
    volcano.fail(volcano.pods("unlucky")[0], 1)
    await_(lambda: volcano.phase("wrong") == "Terminated", "the end of the wrong job")
    assert "retryCount" not in volcano.job("wrong")["status"]
    placed(volcano, unlucky=2)
    assert not first & {pod["metadata"]["uid"] for pod in volcano.pods("unlucky")}
    assert volcano.job("unlucky")["status"]["retryCount"] == 1
    volcano.fail(volcano.pods("unlucky")[0], 1)
    await_(lambda: volcano.phase("unlucky") == "Failed", "the end of its retries")
    assert volcano.placed() == {}


def test_gang_that_fails_while_the_controllers_are_down_is_not_restarted(
    volcano: Scheduling,
) -> None:
    """Volcano evaluates a job's policies only for changes that its controllers observe."""
    job = {"queue": "vision", "gpus_per_node": 2, "nodes": 2, "retries": 2}
    volcano.submit(stack({"unseen": job}, **VOLCANO), "unseen")
    placed(volcano, unseen=2)
    await_(lambda: volcano.phase("unseen") == "Running", "the start of the job")
    controllers = volcano.platform.process("vc-controller-manager")
    controllers.suspend()
    for pod in volcano.pods("unseen"):
        volcano.fail(pod, 1)
    controllers.kill()
    await_(lambda: volcano.phase("unseen") == "Failed", "the end of the job")
    assert "retryCount" not in volcano.job("unseen")["status"]


def test_command_printed_by_status_restarts_a_gang_with_a_missed_failure(
    volcano: Scheduling,
) -> None:
    job = {"queue": "vision", "gpus_per_node": 2, "nodes": 2, "retries": 2}
    volcano.submit(stack({"forgotten": job}, **VOLCANO), "forgotten")
    placed(volcano, forgotten=2)
    await_(lambda: volcano.phase("forgotten") == "Running", "the start of the job")
    failing, lost = volcano.pods("forgotten")
    controllers = volcano.platform.process("vc-controller-manager")
    controllers.suspend()
    volcano.fail(failing, 1)
    volcano.kubectl("delete", "pod", "-n", NAMESPACE, lost["metadata"]["name"], "--force")
    controllers.kill()

    def fix_in_status() -> str:
        reasons = (reason for each in waiting(volcano.snapshot()) for reason in each.reasons)
        found = (
            re.search(r"after the failure of .*`kubectl (.*)` restarts it", r) for r in reasons
        )
        return next((match[1] for match in found if match), "")

    await_(lambda: fix_in_status() != "", "the reason in the status")
    assert volcano.placed() == {}
    volcano.kubectl(*shlex.split(fix_in_status()))
    placed(volcano, forgotten=2)
    assert volcano.job("forgotten")["status"]["retryCount"] == 1


def test_gang_with_a_missed_failure_restarts_with_the_cluster(volcano: Scheduling) -> None:
    """The pods are deleted before the controllers that missed the failure restart."""
    job = {"queue": "vision", "gpus_per_node": 2, "nodes": 2, "retries": 2}
    volcano.submit(stack({"lost": job, "done": job}, **VOLCANO), "lost", "done")
    placed(volcano, lost=2, done=2)
    volcano.fail(volcano.pods("done")[0], 64)
    await_(lambda: volcano.phase("done") == "Terminated", "the end of the other job")
    await_(lambda: volcano.phase("lost") == "Running", "the start of the job")
    done = [pod["metadata"]["uid"] for pod in volcano.pods("done")]
    first = {pod["metadata"]["uid"] for pod in volcano.pods("lost")}
    controllers = volcano.platform.process("vc-controller-manager")
    controllers.suspend()
    volcano.fail(volcano.pods("lost")[0], 1)
    delete_lost_pods(volcano.kubectl, {*volcano.nodes("lost")})
    controllers.kill()
    placed(volcano, lost=2)
    assert not first & {pod["metadata"]["uid"] for pod in volcano.pods("lost")}
    assert "retryCount" not in volcano.job("lost")["status"]
    assert [pod["metadata"]["uid"] for pod in volcano.pods("done")] == done
