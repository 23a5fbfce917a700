"""Entry point of a step: `python3 -m workload.step --run=… --name=… -- COMMAND`.

The program evaluates the step's conditions, replaces `$(inputs.…)` and `$(outputs.…)` in the
command and in environment variables, and runs the command. A step is skipped if a preceding step
was skipped, or if a condition on the metrics of the exported model is false. If there is already a
result for the same image, command, environment variables and inputs, a step with outputs reuses it
and does not run. Volcano counts a step as succeeded if it is skipped or reuses a result.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from workload.exit_codes import BAD_INPUT, DONE, FAILED, INTERRUPTED
from workload.manifest import ExportError, UnavailableExportError, read_manifest
from workload.promotion import parse_named, violations
from workload.report import emit
from workload.results import (
    PLACEHOLDER,
    RESULTS_DIRECTORY,
    StepManifest,
    Value,
    collect,
    complete_result,
    digest_of,
    marker_of,
    publish,
    read_marker,
    resolve,
    write_marker,
)


def main() -> NoReturn:
    """Run the command, or record that the step is skipped."""
    options = _parser().parse_args()
    try:
        _step(options)
    except (OSError, UnavailableExportError) as error:
        # For example, the volume may be full. A retry of the step may succeed.
        emit("step_failed", step=options.name, error=str(error))
        sys.exit(FAILED)


def _step(options: argparse.Namespace) -> NoReturn:
    try:
        reason = _skip_reason(options)
        inputs = {} if reason else _inputs(options)
    except UnavailableExportError:
        raise
    except (ExportError, ValueError) as error:
        _fail(options, error)
    if reason is not None:
        write_marker(options.run, options.name, "skipped", reason=reason)
        emit("step_skipped", step=options.name, reason=reason)
        sys.exit(DONE)
    marker_of(options.run, options.name).unlink(missing_ok=True)
    command, env = _substitute(options.command, inputs, {})
    if options.output:
        sys.exit(_run_or_reuse(options, inputs))
    try:
        os.execvpe(command[0], command, env)  # noqa: S606  no shell is wanted
    except OSError as error:
        _fail(options, _not_executable_error(command, error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m workload.step")
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument("--name", required=True, help="name of the step")
    parser.add_argument("--after", action="append", default=[], help="name of a preceding step")
    parser.add_argument(
        "--when", action="append", default=[], help='condition, such as "accuracy >= 0.97"'
    )
    parser.add_argument(
        "--input", action="append", default=[], help="input, such as rows=prepare.rows"
    )
    parser.add_argument("--output", action="append", default=[], help="output, such as rows=number")
    parser.add_argument(
        "--image", default="", help="string that identifies the contents of the image"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        help="name of an environment variable that affects the result",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="do not reuse the results of other runs"
    )
    parser.add_argument("command", nargs="+")
    return parser


def _skip_reason(options: argparse.Namespace) -> str | None:
    """Return the reason for skipping the step, or None if the step must run."""
    for earlier in options.after:
        if read_marker(options.run, earlier).get("state") == "skipped":
            return f"step {earlier} was skipped"
    if not options.when:
        return None
    metrics = read_manifest(options.run / "export").metrics
    conditions = parse_named(options.when)
    if missing := sorted(conditions.keys() - metrics.keys()):
        known = ", ".join(sorted(metrics)) or "none"
        raise ValueError(f"the export has no metric {missing[0]!r}; its metrics: {known}")
    return next(violations(conditions, metrics, {}), None)


def _inputs(options: argparse.Namespace) -> dict[str, Value]:
    named = (each.partition("=") for each in options.input)
    return {name: resolve(options.run, reference) for name, _, reference in named}


def _run_or_reuse(options: argparse.Namespace, inputs: Mapping[str, Value]) -> int:
    """Run the command and publish its outputs, or reuse a result; return the exit code."""
    types = {name: type_ for name, _, type_ in (each.partition("=") for each in options.output)}
    recipe = {
        "image": options.image,
        "command": options.command,
        "env": {name: os.environ.get(name, "") for name in sorted(options.env)},
        "inputs": {name: value.digest for name, value in inputs.items()},
    }
    owner = {"run": options.run.name, "step": options.name} if options.no_cache else {}
    name = digest_of({**recipe, **owner, "outputs": types})[:32]
    directory = options.run.parent / RESULTS_DIRECTORY / name
    if (existing := complete_result(directory)) is not None:
        _record(options, name, existing)
        return DONE
    # The prefix contains the step's name, because another step may be producing the same result.
    prefix = f".{name}.{options.run.name}.{options.name}"
    for leftover in directory.parent.glob(f"{prefix}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = directory.with_name(f"{prefix}.{secrets.token_hex(4)}")
    unfinished.mkdir(parents=True)
    paths = {each: unfinished / each for each in types}
    command, env = _substitute(options.command, inputs, paths)
    try:
        code, was_terminated = _run(command, env)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        _fail(options, _not_executable_error(command, error))
    if code != DONE:
        shutil.rmtree(unfinished, ignore_errors=True)
        return code
    try:
        parameters, artifacts = collect(unfinished, types)
    except ValueError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if was_terminated:
            emit("step_failed", step=options.name, error=f"received SIGTERM; {error}")
            return INTERRUPTED
        _fail(options, error)
    manifest = StepManifest.model_validate(
        {
            **recipe,
            "step": options.name,
            "run": options.run.name,
            "parameters": parameters,
            "artifacts": artifacts,
        }
    )
    _record(options, name, publish(unfinished, manifest, directory), ran=True)
    return DONE


def _record(
    options: argparse.Namespace, name: str, manifest: StepManifest, *, ran: bool = False
) -> None:
    """Record the result of the step, and report which run produced it."""
    state = "succeeded" if ran else "reused"
    write_marker(options.run, options.name, state, result=name, by=manifest.run)
    emit(
        f"step_{state}",
        step=options.name,
        result=name,
        run=manifest.run,
        parameters=manifest.parameters,
        artifacts={key: file.sha256 for key, file in manifest.artifacts.items()},
    )


def _substitute(
    command: list[str], inputs: Mapping[str, Value], outputs: Mapping[str, Path]
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment with placeholders replaced."""
    texts = {f"inputs.{name}": value.text for name, value in inputs.items()}
    texts |= {f"outputs.{name}": str(path) for name, path in outputs.items()}

    def substitute(text: str) -> str:
        return PLACEHOLDER.sub(lambda m: texts.get(f"{m[1]}.{m[2]}", m[0]), text)

    return [substitute(each) for each in command], {
        name: substitute(value) for name, value in os.environ.items()
    }


def _run(command: list[str], env: dict[str, str]) -> tuple[int, bool]:
    """Run a command; return its exit code, and whether SIGTERM was received.

    SIGTERM is forwarded to the command, which may still succeed.
    """
    was_terminated = False
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        nonlocal was_terminated
        was_terminated = True
        for each in started:
            each.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    with subprocess.Popen(command, env=env) as process:
        started.append(process)
        if was_terminated:  # SIGTERM arrived before `started` contained the process
            process.terminate()
        code = process.wait()
    return code if code >= 0 else 128 - code, was_terminated


def _not_executable_error(command: list[str], error: OSError) -> ValueError:
    return ValueError(
        f"{command[0]!r} is not a program that this image can execute: {error.strerror}"
    )


def _fail(options: argparse.Namespace, error: Exception) -> NoReturn:
    emit("step_failed", step=options.name, error=str(error))
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
