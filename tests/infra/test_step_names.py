"""What the jobs of a run with steps are called."""

from infra.step_names import job_prefix, template_name


def test_a_template_has_the_runs_hash_so_that_each_run_has_its_own():
    assert template_name("digits-large-1a2b3c4d", "evaluate") == "1a2b3c4d-evaluate"


def test_the_job_that_volcano_names_by_flow_and_template_begins_with_the_prefix():
    run = "digits-large-1a2b3c4d"
    job = f"{run}-{template_name(run, 'evaluate')}"
    assert job.removeprefix(job_prefix(run)) == "evaluate"
