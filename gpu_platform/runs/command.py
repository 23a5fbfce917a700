"""`python -m gpu_platform`: manage runs as a team member, without Pulumi and its state."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import policies
from gitops.errors import FAILED, GitopsError
from gpu_platform.runs.arguments import REJECTED, parser

if TYPE_CHECKING:
    from gpu_platform.runs.cluster import Member
    from gpu_platform.runs.submission import Description, Submission

_CONFIGURATIONS = Path(policies.__file__).parent / "config"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    options = parser().parse_args(arguments)
    os.environ["KUBERC"] = "off"  # the user's kuberc may make deletions interactive
    try:
        status: int = _ACTIONS[options.command](options)
    except GitopsError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.status
    except BrokenPipeError:
        raise  # handled by policies.output
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")  # such as a kubectl that is not executable
        return FAILED
    except KeyboardInterrupt:
        creates = options.command == "run" and options.simulate is None
        remain = "; objects that were created remain" if creates else ""
        sys.stderr.write(f"interrupted{remain}\n")
        return 130
    return status


def _member(options: argparse.Namespace) -> Member:
    from gitops.runs.command import kubectl
    from gpu_platform.runs.cluster import Member

    return Member(kubectl(options), options.namespace)


def _run(options: argparse.Namespace) -> int:
    from gpu_platform.runs import submission

    jobs = submission.read_jobs(options.file)
    if options.export:
        sys.stdout.write(submission.stack_configuration(jobs))
        return 0
    member = _member(options)
    text = _read_text(options.platform) if options.platform else member.description()
    description = submission.Description.parse(text)
    if description.platform.namespace != options.namespace:
        raise GitopsError(
            f"the namespace of platform {description.stack} is "
            f"{description.platform.namespace}, not {options.namespace}: use --namespace "
            f"{description.platform.namespace}"
        )
    runs = submission.submissions(jobs, description)
    if _violates_policies(options, runs, description):
        return REJECTED
    for run in runs:
        _report_cost(options, member, run, description)
    if options.dry_run:
        import yaml

        from policies.kubernetes_yaml import Dumper

        objects = [each for run in runs for each in run.manifests]
        sys.stdout.write(yaml.dump_all(objects, Dumper=Dumper, sort_keys=False))
        return 0
    if options.simulate is not None:
        sys.stdout.write(_simulation_report(runs, options.simulate))
        return 0
    for run in runs:
        if run.job.notebook is not None and run.job.notebook.route is not None:
            raise GitopsError(
                f"{run.key}.notebook.route needs a Service, which members have no permission to "
                "create: omit the route, or add the notebook to training.jobs of the stack"
            )
    for run in runs:
        if member.create(run.manifests):
            sys.stderr.write(f"{run.name}: submitted\n")
        else:
            sys.stderr.write(f"{run.name}: already exists; nothing was started\n")
        sys.stdout.write(f"{run.name}\n")
        sys.stdout.flush()
    if options.follow:
        return max(_follow(member, run.name) for run in runs)
    return 0


def _simulation_report(runs: Sequence[Submission], snapshot: Path) -> str:
    """Return a report on how the scheduler would place the runs, based on a cluster snapshot."""
    from datetime import UTC, datetime

    from gitops.forecast.answer import render
    from gitops.forecast.simulate import simulate
    from gitops.forecast.state import load
    from gitops.forecast.whatif import with_manifests
    from policies.evaluation import resource_of
    from policies.views import View

    base = load(snapshot)
    views = [View(resource_of(dict(each))) for run in runs for each in run.manifests]
    state, assumptions = with_manifests(base, views, f"--simulate {snapshot}")
    sys.stderr.write("starting a simulated cluster…\n")
    answer = simulate(state, datetime.now(UTC), base=base)
    return render(answer.model_copy(update={"assumptions": [*assumptions, *answer.assumptions]}))


def _follow(member: Member, run: str) -> int:
    """Follow the logs of a run and return the exit status, which is 0 if the run succeeds."""
    state = member.follow(run)
    sys.stderr.write(f"{run}: {state}\n")
    return 0 if state == "succeeded" else FAILED


def _violates_policies(
    options: argparse.Namespace, runs: Sequence[Submission], description: Description
) -> bool:
    """Print policy violations, and return whether a mandatory rule is violated."""
    from gpu_platform.runs import findings, submission

    file = options.policy_config or _CONFIGURATIONS / f"{description.stack}.json"
    settings = findings.read_settings(file) if options.policy_config or file.exists() else {}
    violated = False
    for run in runs:
        for finding in submission.violations(run, description.platform, settings):
            level = "mandatory" if finding.mandatory else "advisory"
            sys.stderr.write(
                f"{run.name}: violates the {level} rule {finding.rule}: {finding.message}. "
                f"{finding.remediation}\n"
            )
            violated |= finding.mandatory
    return violated


def _report_cost(
    options: argparse.Namespace, member: Member, run: Submission, description: Description
) -> None:
    from gitops import prices
    from gitops.preview.new_runs import REJECTION_EFFECT
    from gpu_platform.runs import submission
    from kube.quantities import quantity_or_none

    table = prices.load(options.prices or prices.DEFAULT)
    rows = submission.costs(run, table, description.stack)
    for row in rows:
        price = "unknown cost" if row.cost_hour is None else f"{row.cost_hour:.2f} {table.currency}"
        deadline = "the deadline of each attempt" if row.each_attempt else "its deadline"
        maximum = "" if row.cost is None else f", at most {row.cost:.2f} until {deadline}"
        gpus = f"{row.gpus:f} {'GPU' if row.gpus == 1 else 'GPUs'}"
        sys.stderr.write(f"{row.run}: {gpus}, {price} per hour{maximum}\n")
    if not rows or options.platform is not None:
        return
    requested = max(row.gpus for row in rows)
    resource = run.job.gpu_resource or description.platform.gpu_nodes.resource
    for name, used, limit in member.quota(resource):
        remaining = (quantity_or_none(limit) or 0) - (quantity_or_none(used) or 0)
        if remaining < requested:
            sys.stderr.write(
                f"{run.name}: {remaining:f} of {limit} {resource} are left in quota {name}, so the "
                f"API server may reject the run's pods. {REJECTION_EFFECT}\n"
            )
    sys.stderr.write(f"{run.name}: {_free_capacity(member, run.job.queue, resource, requested)}\n")


def _free_capacity(member: Member, queue: str, resource: str, requested: Decimal) -> str:
    """Return a sentence about the free devices in a queue.

    The number is unknown if the queue cannot be read or has no limit.
    """
    from kube.quantities import quantity_or_none

    try:
        allocated, limit = member.queue(queue, resource)
    except GitopsError as error:
        return f"the number of free {resource} in queue {queue} is unknown: {error}"
    if limit is None:
        return (
            f"{allocated} {resource} are allocated in queue {queue}, which has no limit; the "
            "number of free devices on the nodes is unknown"
        )
    remaining = (quantity_or_none(limit) or 0) - (quantity_or_none(allocated) or 0)
    if remaining < requested:
        return (
            f"{remaining:f} of {limit} {resource} are left in queue {queue}, so the run waits "
            "until other runs finish or are preempted"
        )
    return (
        f"{remaining:f} of {limit} {resource} are left in queue {queue}; the number of free "
        "devices on the nodes is unknown"
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise GitopsError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise GitopsError(f"{file} cannot be read: {error}") from None


def _list(options: argparse.Namespace) -> int:
    from gitops.runs import command as status

    shown = argparse.Namespace(
        **vars(options), watch=False, json=False, svg=None, stack="", prices=None
    )
    status.run(shown)
    return 0


def _sweeps(options: argparse.Namespace) -> int:
    from gpu_platform.runs.sweeps import sweep_lines

    sweeps = _member(options).sweeps()
    if options.html is not None:
        from gpu_platform.runs.sweep_page import page

        content = page(sweeps)
        try:
            options.html.write_text(content, "utf-8")
        except OSError as error:
            raise GitopsError(f"{options.html} cannot be written: {error.strerror}") from None
        sys.stdout.write(f"wrote {options.html}\n")
        return 0
    if not sweeps:
        sys.stdout.write(f"no sweeps in namespace {options.namespace}\n")
    for line in sweep_lines(sweeps):
        sys.stdout.write(f"{line}\n")
    return 0


def _logs(options: argparse.Namespace) -> int:
    if options.follow:
        return _follow(_member(options), options.name)
    return 0 if _member(options).logs(options.name) else FAILED


def _suspend(options: argparse.Namespace) -> int:
    _member(options).suspend(options.name, suspended=True)
    sys.stderr.write(f"{options.name}: suspended\n")
    return 0


def _resume(options: argparse.Namespace) -> int:
    _member(options).suspend(options.name, suspended=False)
    sys.stderr.write(f"{options.name}: resumed\n")
    return 0


def _stop(options: argparse.Namespace) -> int:
    _member(options).stop(options.name)
    sys.stderr.write(f"{options.name}: stopped; its checkpoints and logs remain\n")
    return 0


def _models(options: argparse.Namespace) -> int:
    from gpu_platform.models.command import run

    return run(options)


_ACTIONS = {
    "run": _run,
    "list": _list,
    "sweeps": _sweeps,
    "logs": _logs,
    "suspend": _suspend,
    "resume": _resume,
    "stop": _stop,
    "models": _models,
}
