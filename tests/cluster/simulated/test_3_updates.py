"""Updates of existing jobs, under Volcano's webhooks and the API server's rules for Jobs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.platform import Platform, await_

LABEL = "example.com/site"
JOBS = {"digits": "jobs.batch.volcano.sh", "sweep": "jobs.batch"}
FINISHED = ("jsonpath={.status.state.phase}=Completed", "condition=Complete")
"""Conditions of finished jobs, in the order of `JOBS`."""


@pytest.fixture(scope="module")
def restored(cluster: Platform) -> Iterator[Platform]:
    """A cluster whose stack is restored after all tests of this file."""
    yield cluster
    cluster.make("up")


@pytest.fixture
def changed(restored: Platform) -> Iterator[Platform]:
    """A cluster whose files are restored afterwards; the next update applies them."""
    cluster = restored
    sources = [cluster.checkout / "infra" / name for name in ("volcano.py", "kinds/volcano.py")]
    files = [cluster.stack_file, *sources]
    before = {file: file.read_text() for file in files}
    yield cluster
    for file, text in before.items():
        file.write_text(text)


def update(cluster: Platform, site: str, state: str = "running") -> dict[str, dict[str, Any]]:
    """Change the label of all objects and the state of the job `sweep`; return the jobs."""

    def change(config: dict[str, Any]) -> None:
        config["gpu-platform:cluster"]["labels"] = {LABEL: site}
        config["gpu-platform:training"]["jobs"]["sweep"]["state"] = state

    cluster.edit(change)
    cluster.shell(f"pulumi up --stack {cluster.stack} --yes --skip-preview")
    return {
        key: cluster.kubectl("get", kind, "-n", cluster.namespace, cluster.run_name(key))
        for key, kind in JOBS.items()
    }


def existing(cluster: Platform, kind: str) -> set[str]:
    items = cluster.kubectl("get", kind, "-n", cluster.namespace)["items"]
    return {item["metadata"]["name"] for item in items}


def uids(jobs: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {key: job["metadata"]["uid"] for key, job in jobs.items()}


def test_existing_job_can_be_updated_repeatedly(changed: Platform) -> None:
    first = update(changed, "first")
    for site, state in (("second", "suspended"), ("third", "running"), ("fourth", "suspended")):
        jobs = update(changed, site, state)
        assert uids(jobs) == uids(first)
        assert {job["metadata"]["labels"][LABEL] for job in jobs.values()} == {site}
        assert jobs["sweep"]["spec"]["suspend"] is (state == "suspended")


def test_job_from_an_earlier_release_without_task_retries_can_be_updated(changed: Platform) -> None:
    file = changed.checkout / "infra" / "kinds" / "volcano.py"
    release = file.read_text()
    earlier = release.replace('{**task, "maxRetry": _TASK_RETRIES}', "task")
    assert earlier != release
    file.write_text(earlier)
    changed.hyperparameters(epochs=3)
    first = update(changed, "earlier")
    file.write_text(release)
    jobs = update(changed, "later")
    assert uids(jobs) == uids(first)
    assert jobs["digits"]["metadata"]["labels"][LABEL] == "later"


def test_queues_and_their_first_runs_are_added_in_one_previewed_update(changed: Platform) -> None:
    """Volcano's webhooks would reject dry runs of the child queue and of the runs."""

    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:volcano"]["queues"] |= {"science": {}, "vision": {"parent": "science"}}
        for job in JOBS:
            config["gpu-platform:training"]["jobs"][job]["queue"] = "vision"

    changed.edit(add)
    changed.shell(f"pulumi up --stack {changed.stack} --yes")
    for key, kind in JOBS.items():
        assert changed.run_name(key) in existing(changed, kind)
    changed.shell(f"pulumi preview --stack {changed.stack} --expect-no-changes")


def test_unopened_queue_fails_the_update_and_a_retry_trains(changed: Platform) -> None:
    file = changed.checkout / "infra" / "volcano.py"
    hasty = file.read_text().replace('"120"', '"5"')
    assert hasty != file.read_text()
    file.write_text(hasty)
    changed.edit(lambda config: config["gpu-platform:volcano"]["queues"].update(late={}))
    changed.hyperparameters(epochs=4)
    controllers = changed.process("vc-controller-manager")
    controllers.suspend()
    try:
        output = changed.shell(f"! pulumi up --stack {changed.stack} --yes --skip-preview 2>&1")
    finally:
        controllers.resume()
    # On the first attempt, Pulumi's provider waits for a condition; later, it waits for a state.
    waits = ("timed out waiting for the condition", "'late' timed out waiting to be Ready")
    assert any(text in output for text in waits), output
    # The retry has the same short limit, and the controllers may need longer after their pause.
    opened = "kubectl wait queues.scheduling.volcano.sh/late --timeout=600s"
    changed.shell(f"{opened} --for=jsonpath={{.status.state}}=Open")
    # The failed update created no job, so this run is not treated as one whose job was deleted.
    changed.shell(f"pulumi up --stack {changed.stack} --yes --skip-preview")
    assert "Volcano's controllers have not opened the queue" in output


def test_queue_creation_waits_for_a_webhook_that_is_starting(changed: Platform) -> None:
    changed.edit(lambda config: config["gpu-platform:volcano"]["queues"].update(early={}))
    webhook = changed.process("vc-webhook-manager")
    webhook.suspend()
    log, retrying = changed.checkout / "up.log", "retrying create due to on-error hook"
    up = f"pulumi up --stack {changed.stack} --yes --skip-preview"

    def retried() -> bool:
        return log.exists() and retrying in log.read_text()

    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(changed.shell, f"set -o pipefail; {up} 2>&1 | tee {log}")
        try:
            await_(lambda: update.done() or retried(), "a retry")
        finally:
            webhook.resume()
        assert retrying in update.result()
    assert changed.kubectl("get", "queues.scheduling.volcano.sh", "early")["status"]["state"]


def refreshed(cluster: Platform) -> None:
    cluster.shell(f"pulumi refresh --stack {cluster.stack} --yes --skip-preview")


def test_finished_run_is_not_repeated_after_its_job_is_deleted(changed: Platform) -> None:
    update(changed, "before")
    runs = [changed.run_name(key) for key in JOBS]
    jobs = [f"{kind}/{run}" for kind, run in zip(JOBS.values(), runs, strict=True)]
    for job, condition in zip(jobs, FINISHED, strict=True):
        finished = f"kubectl wait {job} --for={condition} --timeout=600s"
        changed.shell(f"{finished} --namespace {changed.namespace}")
        changed.shell(f"kubectl delete {job} --namespace {changed.namespace} --timeout=600s")
    # Without a refresh, nothing is created, because the state still contains the jobs. The update
    # may still contain changes, because Pulumi repeats updates that a hook has retried.
    changed.shell(f"pulumi up --stack {changed.stack} --yes --skip-preview")
    for kind, run in zip(JOBS.values(), runs, strict=True):
        assert run not in existing(changed, kind)
    refreshed(changed)
    for command in ("preview", "up --yes --skip-preview"):
        output = changed.shell(f"! pulumi {command} --stack {changed.stack} 2>&1")
        assert f"The run {changed.run_name()} would start again" in output
        assert "Traceback" not in output
    for kind, run in zip(JOBS.values(), runs, strict=True):
        assert run not in existing(changed, kind)

    def remove_one_and_resume_the_other(config: dict[str, Any]) -> None:
        del config["gpu-platform:training"]["jobs"]["sweep"]
        config["gpu-platform:training"]["jobs"]["digits"]["recreate"] = True

    changed.edit(remove_one_and_resume_the_other)
    run = changed.run_name()
    changed.shell(f"pulumi up --stack {changed.stack} --yes --skip-preview")
    assert changed.run_name() == run
    assert runs[1] not in existing(changed, JOBS["sweep"])
