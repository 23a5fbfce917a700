"""`python -m gitops preview`: previews a stack under the policy pack and writes the report."""

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gitops.engine import Pack, Preview, Stack
from gitops.errors import BLOCKED, CHANGES, FAILED, UNCHANGED, GitopsError

HELP = "preview a stack under the policies, and write what a reviewer needs as Markdown and JSON"
DESCRIPTION = """\
Previews a stack under the policy pack. The report says what is created, changed, replaced and
deleted (what loses data or work stands first), GPUs by queue and product, their cost, what is left
of quotas, what the policies say, what is not known yet, and the difference of the manifests.
"""
EPILOG = f"""\
examples:
  python -m gitops preview --stack prod
  python -m gitops preview --stack prod --out preview/
  python -m gitops preview --stack prod --rendered --base origin/main --out preview/
  python -m gitops preview --stack prod --refresh

A rendered preview needs no cluster, no state and no secrets, and is what pull requests from forks
get. It is compared with --base, a Git revision, where one is given.

exit status:
  {UNCHANGED}   nothing changes
  {CHANGES}   an update would change something, and may
  {BLOCKED}   a mandatory policy or a protected resource forbids it
  {FAILED}   the preview failed; the report says why
  64  wrong arguments
"""
_STATUS = {"unchanged": UNCHANGED, "changes": CHANGES, "blocked": BLOCKED, "failed": FAILED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("--stack", required=True, metavar="NAME", help="the stack to preview")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write comment.md and report.json there"
    )
    parser.add_argument(
        "--refresh", action="store_true", help="compare with the cluster as it is now (drift)"
    )
    parser.add_argument(
        "--rendered", action="store_true", help="without cluster, state and secrets"
    )
    parser.add_argument(
        "--base", metavar="REVISION", help="with --rendered: the Git revision to compare with"
    )
    parser.add_argument(
        "--config-file", type=Path, metavar="FILE", help="in place of Pulumi.NAME.yaml"
    )
    parser.add_argument(
        "--policy-pack-config",
        type=Path,
        metavar="FILE",
        help="default: policies/config/NAME.json, where there is one",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="default: gitops/config/prices.yaml"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if options.base is not None and not options.rendered:
        raise GitopsError("--base is for --rendered: a live preview is compared with the state")
    if options.refresh and options.rendered:
        raise GitopsError("--refresh asks the cluster, which --rendered has none of: leave one out")
    chosen = options.config_file.resolve() if options.config_file else None
    stack = Stack(options.stack, configuration=chosen)
    if not stack.file.exists():
        raise GitopsError(
            f"there is no {stack.file}: write one with `python -m gitops new-environment "
            f"{options.stack}`"
        )
    pack = Pack(stack.project / "policies", _pack_configuration(options, stack))
    with _workspace(options, stack) as used:
        sys.stderr.write(f"previewing {options.stack} under the policies…\n")
        with Preview(used, pack, refresh=options.refresh) as engine:
            return _report(options, used, engine, pack)


def _pack_configuration(options: argparse.Namespace, stack: Stack) -> Path | None:
    if options.policy_pack_config is not None:
        given: Path = options.policy_pack_config.resolve()
        if not given.exists():
            raise GitopsError(f"there is no configuration of the policy pack at {given}")
        return given
    own = stack.project / "policies" / "config" / f"{stack.name}.json"
    return own if own.exists() else None


def _workspace(options: argparse.Namespace, stack: Stack) -> AbstractContextManager[Stack]:
    if not options.rendered:
        return nullcontext(stack)
    from gitops.rendered import workspace

    if options.base is not None:
        sys.stderr.write(f"rendering {options.stack} as it is at {options.base}…\n")
    return workspace(stack, options.base)


def _report(options: argparse.Namespace, stack: Stack, engine: Preview, pack: Pack) -> int:
    # Loaded while the engine works: together they take as long as the engine alone.
    from gitops.preview import reporting

    asked = reporting.Asked(
        stack=options.stack,
        mode="rendered" if options.rendered else "drift" if options.refresh else "live",
        base=options.base,
        prices=options.prices,
        out=options.out,
        pack=pack.folder,
    )
    status = reporting.report(asked, stack, engine)
    begin = "\r" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{begin}{options.stack}: {status}\n")
    return _STATUS[status]
