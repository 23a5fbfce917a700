import pulumi
import pytest

from infra.many_jobs import MOST_JOBS, warn_of_many
from tests.infra.conftest import Provision
from tests.infra.examples import good


def test_all_jobs_of_a_stack_are_children_of_one_component(provision: Provision) -> None:
    values = good()
    values["training"]["jobs"]["again"] = values["training"]["jobs"]["digits"]
    plan = provision(values)
    jobs = plan.names("kubernetes:batch.volcano.sh/v1alpha1:Job")
    assert len(jobs) == 2
    (parent,) = {plan[name].parent for name in jobs}
    assert parent.endswith("gpu-platform:index:TrainingJobs::training")


@pytest.mark.parametrize(("jobs", "warnings"), [(0, 0), (MOST_JOBS, 0), (MOST_JOBS + 1, 1)])
def test_a_stack_of_too_many_jobs_is_told_so(
    jobs: int, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    warn_of_many(jobs)
    assert len(said) == warnings
    assert all(f"{jobs} jobs" in text and "docs/scale.md" in text for text in said)
