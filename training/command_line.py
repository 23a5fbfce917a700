"""Configuration of a run from flags, environment variables and a file, in order of precedence."""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Annotated, Any, Final, Literal, NoReturn, Union, get_args, get_origin

from pydantic import ValidationError

from training.config import TrainingConfig, flag_of, written
from workload.configuration import ConfigurationError, problem_sentences

ENVIRONMENT_PREFIX: Final = "TRAINING_"
FILE: Final = "config"
"""Name of the setting that selects the settings file: `--config` or `TRAINING_CONFIG`."""


def variable_of(field: str) -> str:
    """Return the environment variable of a field: `batch_size` → `TRAINING_BATCH_SIZE`."""
    return ENVIRONMENT_PREFIX + field.upper()


def read_config(arguments: Sequence[str], environment: Mapping[str, str]) -> TrainingConfig:
    """Read a run's configuration; flags override environment variables, which override the file.

    Raise a ConfigurationError that lists all errors, each with the flag, variable or key that the
    user set.
    """
    flags = vars(_parser().parse_args(arguments))
    file = flags[FILE] or environment.get(variable_of(FILE))
    values: dict[str, Any] = _read_file(Path(file)) if file else {}
    written_as = {name: f"{name} (in {file})" for name in values}
    for name in TrainingConfig.model_fields:
        if flags[name] is not None:
            values[name], written_as[name] = flags[name], flag_of(name)
        elif variable_of(name) in environment:
            values[name], written_as[name] = environment[variable_of(name)], variable_of(name)
    try:
        return TrainingConfig.model_validate(values)
    except ValidationError as error:
        sentences = problem_sentences(error, written_as, TrainingConfig.model_fields)
        raise ConfigurationError("; ".join(sentences)) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"{flag_of(FILE)} {path} cannot be read: {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{flag_of(FILE)} {path} is not valid TOML: {error}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message} (see python -m training --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m training",
        description="Train a PyTorch model, alone or as a gang of processes under torchrun.",
        epilog="Every flag has an environment variable: --batch-size is "
        f"{variable_of('batch_size')}. An interrupted run resumes from its last checkpoint when it "
        "is started again with the same run_dir. Exit codes: 0 done, 64 invalid configuration or "
        "data (do not retry), 69 slow node (retry elsewhere), 75 interrupted after saving (retry), "
        "76 hung (retry); any other code is a failure.",
        allow_abbrev=False,
    )
    parser.add_argument(
        flag_of(FILE),
        metavar="FILE",
        help="TOML file with the settings below, named with underscores (batch_size = 32); flags "
        "and environment variables override it",
    )
    for name, field in TrainingConfig.model_fields.items():
        default = str(written(field.get_default(call_default_factory=True))) or "none"
        parser.add_argument(
            flag_of(name),
            dest=name,
            metavar=_metavar(field.annotation),
            help=f"{field.description} (default: {default})".replace("%", "%%"),
        )
    return parser


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "{" + ",".join(get_args(annotation)) + "}"
    if get_origin(annotation) in (tuple, Union, UnionType, Annotated):
        return _metavar(get_args(annotation)[0])
    names: dict[Any, str] = {
        int: "N",
        float: "X",
        PurePosixPath: "DIR",
        bool: "{true,false}",
        str: "NAME",
    }
    return names.get(annotation, "JSON")
