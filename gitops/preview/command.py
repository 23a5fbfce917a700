"""`python -m gitops preview`: preview a stack with the policy pack and write a report."""

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gitops.engine import PROJECT, Pack, Preview, Result, Stack, external_resources
from gitops.errors import BLOCKED, CHANGES, FAILED, UNCHANGED, GitopsError, UsageError
from gitops.forecast.simulate_command import add_repeat
from workload.files import write_atomically

if TYPE_CHECKING:
    from gitops.preview.events import Plan
    from gitops.preview.report import Mode, Report, Status
    from gitops.secrets import Mask

HELP = "preview a stack with the policy pack, and write a report as Markdown and JSON"
DESCRIPTION = """\
Preview a stack with the policy pack. The report lists:
  - resources that are created, changed, replaced or deleted (data loss and lost work first)
  - GPUs by queue and model, their cost, and the remaining quotas
  - policy violations
  - values that are unknown until the update
  - diffs of the manifests
"""
EPILOG = f"""\
examples:
  python -m gitops preview --stack prod
  python -m gitops preview --stack prod --base origin/main --out preview/
  python -m gitops preview --stack prod --rendered --base origin/main --out preview/
  python -m gitops preview --stack prod --simulate cluster.yaml --out preview/
  python -m gitops preview --stack prod --refresh
  python -m gitops preview --stack prod --project ../team-stack --out preview/

With --base, the report begins with the settings that have changed since that Git revision.

--simulate runs real Volcano in a simulated cluster to show which runs start, wait or are preempted
after the update. `python -m gitops snapshot` writes snapshots.

A rendered preview requires no cluster, no state and no secrets, so it is used for pull requests
from forks. With --base, it is compared with that Git revision.

--refresh reports only drift: changes in the cluster that the last update did not make. It neither
runs the program nor checks policies. To list changes that have not been applied, omit --refresh.

exit status:
  {UNCHANGED}   nothing changes
  {CHANGES}   an update would change something, or the cluster has drifted
  {BLOCKED}   an update is blocked by a mandatory policy, a protected resource or a move to
      another cluster
  {FAILED}   the preview failed; the report contains the reason
  64  invalid arguments
"""
_CHART = "simulation.svg"
_STATUS = {"unchanged": UNCHANGED, "changes": CHANGES, "blocked": BLOCKED, "failed": FAILED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("--stack", required=True, metavar="NAME", help="stack to preview")
    parser.add_argument(
        "--project",
        type=Path,
        default=PROJECT,
        metavar="DIR",
        help="directory of a different Pulumi project, such as the project of a team",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for comment.md, report.json and the chart of a simulation",
    )
    parser.add_argument(
        "--refresh", action="store_true", help="compare the cluster with the state (drift)"
    )
    parser.add_argument(
        "--rendered", action="store_true", help="preview without a cluster, state or secrets"
    )
    parser.add_argument(
        "--base",
        metavar="REVISION",
        help="compare settings with this Git revision; with --rendered, compare everything",
    )
    parser.add_argument(
        "--save-plan",
        type=Path,
        metavar="FILE",
        help="write the update plan for `pulumi up --plan FILE`",
    )
    parser.add_argument(
        "--simulate",
        nargs="?",
        const="",
        metavar="SNAPSHOT",
        help="simulate the scheduler on this snapshot or, without a value, on a new one",
    )
    add_repeat(parser)
    parser.add_argument(
        "--config-file", type=Path, metavar="FILE", help="default: Pulumi.NAME.yaml"
    )
    parser.add_argument(
        "--policy-pack-config",
        type=Path,
        metavar="FILE",
        help="default: policies/config/NAME.json, if it exists",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="default: gitops/config/prices.yaml"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status. If it fails, the report states the reason."""
    try:
        return _run(options)
    except GitopsError as error:
        if options.out is not None:
            _report_failure(options, str(error))
        raise
    except Exception as error:
        # The message may contain a secret, and the report may become a public comment.
        if options.out is not None:
            reason = f"the preview failed with {type(error).__name__}: see the log of this command"
            _report_failure(options, reason)
        raise


def _report_failure(options: argparse.Namespace, reason: str) -> None:
    """Write the report of a failed preview, and replace an earlier report."""
    from gitops import prices
    from gitops.preview import markdown
    from gitops.preview.build import build
    from gitops.preview.events import Plan

    failed = Plan(steps=(), errors=(reason,), succeeded=False, complete=False)
    # The price table is not read: the report contains no costs, and the table may be invalid.
    table = prices.Prices(currency="-")
    built = build(failed, stack=options.stack, prices=table, mode=_mode(options), base=options.base)
    _write(options.out, built, markdown.render(built))


def _mode(options: argparse.Namespace) -> "Mode":
    return "rendered" if options.rendered else "drift" if options.refresh else "live"


def _run(options: argparse.Namespace) -> int:
    if options.refresh and options.rendered:
        raise UsageError("--refresh requires a cluster, but --rendered uses none: omit one of them")
    if options.save_plan and (options.refresh or options.rendered):
        raise UsageError("--save-plan applies to updates: omit --refresh and --rendered")
    if options.simulate is not None and (options.refresh or options.rendered):
        raise UsageError("--simulate applies to updates: omit --refresh and --rendered")
    if options.repeat is not None and options.simulate is None:
        raise UsageError("--repeat applies to simulations: add --simulate")
    if options.refresh and options.base:
        raise UsageError(
            "--refresh compares with the last update, not with --base: omit one of them"
        )
    is_other_project = options.project.resolve() != PROJECT
    if is_other_project and (options.rendered or options.base or options.simulate is not None):
        raise UsageError(
            "--rendered, --base and --simulate read the settings of this project: omit them with "
            "--project"
        )
    config = options.config_file.resolve() if options.config_file else None
    if config is not None and not config.exists():
        raise GitopsError(f"{config} does not exist: pass an existing file to --config-file")
    stack = Stack(options.stack, options.project.resolve(), configuration=config)
    if is_other_project and not stack.file.exists():
        raise GitopsError(f"{stack.file} does not exist: pass the directory of a Pulumi project")
    if not stack.file.exists():
        raise GitopsError(
            f"{stack.file} does not exist: create it with `python -m gitops new-environment "
            f"{options.stack}`"
        )
    pack = Pack(PROJECT / "policies", _pack_configuration(options, stack))
    if not options.rendered:
        from gitops.preview import validation

        stack = replace(stack, notices=validation.probe(stack, dry_run=not options.refresh))
    with _workspace(options, stack) as previewed:
        sys.stderr.write(f"previewing {options.stack}…\n")
        # `pulumi refresh` does not evaluate policies.
        checks = None if options.refresh else pack
        plan = options.save_plan.resolve() if options.save_plan else None
        with Preview(previewed, checks, refresh=options.refresh, plan=plan) as engine:
            status = report(options, previewed, engine, pack)
            begin = "\r" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{begin}{options.stack}: {status}\n")
            return _STATUS[status]


def _pack_configuration(options: argparse.Namespace, stack: Stack) -> Path | None:
    if options.policy_pack_config is not None:
        file: Path = options.policy_pack_config.resolve()
        if not file.exists():
            raise GitopsError(f"the policy pack configuration {file} does not exist")
        return file
    own = stack.project / "policies" / "config" / f"{stack.name}.json"
    return own if own.exists() else None


def _workspace(options: argparse.Namespace, stack: Stack) -> AbstractContextManager[Stack]:
    if not options.rendered:
        return nullcontext(stack)
    from gitops.rendered import workspace

    if options.base:
        sys.stderr.write(f"rendering {options.stack} at {options.base}…\n")
    return workspace(stack, options.base or None)


def report(options: argparse.Namespace, stack: Stack, engine: Preview, pack: Pack) -> "Status":
    """Wait for the preview, write the report, and return the report's status.

    `pack` is the policy pack that the engine used. Error messages contain `policies` instead of the
    pack's path.
    """
    # Imported while the engine is running, so that the imports take no additional time.
    from gitops import prices, secrets
    from gitops.preview import markdown
    from gitops.preview.build import build
    from gitops.preview.simulation import with_simulation
    from gitops.secrets import Mask

    table = prices.load(options.prices or prices.DEFAULT)
    # A rendered stack contains no secrets, only placeholders.
    hide = Mask([] if options.rendered else secrets.values(stack))
    plan = _plan(engine.log, engine.wait(_Progress(sys.stderr)), hide)
    if options.refresh and plan.succeeded:
        # Changes to resources that the program only reads are not drift.
        external = external_resources(stack)
        plan = replace(plan, steps=tuple(s for s in plan.steps if s.urn not in external))
    errors = tuple(e.replace(str(pack.directory), "policies") for e in plan.errors)
    settings, problems = _changed_settings(options)
    if not options.refresh and pack.configuration is None:
        problems.append(
            f"policies/config/{options.stack}.json does not exist, so the policies use their "
            "default limits. If the stack was renamed, rename its policy configuration file too."
        )
    plan = replace(
        plan, errors=errors, warnings=(*plan.warnings, *map(hide, problems)), notices=stack.notices
    )
    answer = None
    if _mode(options) == "live":
        plan, answer = with_simulation(
            plan, options.simulate, stack, pack.configuration, options.repeat
        )
    built = build(
        plan,
        stack=options.stack,
        prices=table,
        mode=_mode(options),
        base=options.base,
        settings=[hide(change) for change in settings],
        simulation=answer,
    )
    _write(options.out, built, markdown.render(built))
    return built.status


def _changed_settings(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the changes to the settings since the base, and errors that prevent a comparison."""
    from gitops.environments.difference import changes_since
    from infra.settings import SettingsError

    if not options.base:
        return [], []
    file = Stack(options.stack, configuration=options.config_file).file
    try:
        return changes_since(file.resolve(), options.base), []
    except (GitopsError, SettingsError) as error:
        return [], [f"The settings are not compared with {options.base}: {error}"]


def _write(out: Path | None, built: "Report", comment: str) -> None:
    if out is None:
        sys.stdout.write(comment)
        return
    out.mkdir(parents=True, exist_ok=True)
    document = built.model_dump_json(by_alias=True, indent=2) + "\n"
    if built.simulation is not None:
        from gitops.forecast.gantt import svg

        write_atomically(out / _CHART, svg(built.simulation).encode())
    write_atomically(out / "comment.md", comment.encode())
    write_atomically(out / "report.json", document.encode())


def _plan(log: Path, result: Result, hide: "Mask") -> "Plan":
    from gitops.hidden import plan_without_literals
    from gitops.preview.events import Plan, read, relevant_output

    errors = (hide(relevant_output(result.output)),)
    if not log.exists():
        # The CLI failed before the engine started: the stack, login or passphrase may be missing.
        return Plan(steps=(), errors=errors, succeeded=False, complete=False)
    found = plan_without_literals(read(log), hide)
    if found.succeeded or found.errors or found.findings:
        return found
    return Plan(found.steps, errors=errors, succeeded=False, complete=False)


class _Progress:
    """Progress output of a preview: one line on a terminal, otherwise a line every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._calls = 0

    def __call__(self, resources: int) -> None:
        self._calls += 1
        if self._stream.isatty():
            self._stream.write(f"\r{resources} resources…")
        elif self._calls % 10 == 0:
            self._stream.write(f"{resources} resources…\n")
        self._stream.flush()
