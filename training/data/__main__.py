"""`python -m training.data`: prepare, check and validate data sets for training."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn

from training.data.manifest import Manifest
from training.data.progress import report_stderr
from training.data.samples import DataError, UnavailableError
from training.gang.preflight import FULL, describe_error
from training.settings import IMAGES
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.cores import available_cores

DEFAULT_FIELD = "text"
"""Default name of the field or column that contains the text."""

DEFAULT_SIZE = 224
"""Default height and width of images that are read from a directory."""

DEFAULT_HELD_OUT = 0.1
"""Default share of samples to hold out."""

INTERRUPTED = 130
"""Exit code that a shell reports for Ctrl-C."""


class _Parser(argparse.ArgumentParser):
    """Parser that exits with the training program's code for invalid input."""

    def error(self, message: str) -> NoReturn:
        self.exit(exit_codes.BAD_INPUT, f"{message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        summary: str = options.run(options)
    except UnavailableError as error:
        return _fail(str(error), exit_codes.FAILED)
    except (DataError, ConfigurationError) as error:
        return _fail(str(error), exit_codes.BAD_INPUT)
    except OSError as error:
        problem = f"{options.target} cannot be written: {error}"
        if error.errno in FULL:
            problem = (
                f"{options.target} cannot be written: {describe_error(options.target, error)}; "
                f"{_left_behind(options.target)}: free space or use a larger volume, and run the "
                "same command again"
            )
        return _fail(problem, exit_codes.FAILED)
    except KeyboardInterrupt as error:
        message = f"interrupted; {_left_behind(options.target)}: run the same command again"
        return _fail(message, error.args[0] if error.args else INTERRUPTED)
    sys.stdout.write(summary)
    return exit_codes.DONE


def _terminate(number: int, _: object) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, but with a different exit code."""
    raise KeyboardInterrupt(128 + number)


def _left_behind(target: Path) -> str:
    """Return what a failed command has written."""
    from training.data.prepare.output import is_partly_published

    if is_partly_published(target):
        return "the data set is complete, but not all of its files are in place"
    return "nothing was written"


def _fail(message: str, code: int) -> int:
    report_stderr(message)
    return code


def _summary(target: Path, manifest: Manifest) -> str:
    unit = "images" if manifest.kind == "shards" else "tokens"
    lines = [
        f"{target}: {sum(part.count for part in split.parts):,} {use} {unit} "
        f"in {len(split.parts)} {'file' if len(split.parts) == 1 else 'files'}"
        for split, use in ((manifest.train, "training"), (manifest.held_out, "held-out"))
    ]
    lines += [f"dropped: {count:,} {reason}" for reason, count in sorted(manifest.dropped.items())]
    return "\n".join(lines) + "\n"


def _images(options: argparse.Namespace) -> str:
    # Commands import what they need, so that --help and usage errors appear immediately.
    from training.data.prepare.images import from_dataset, from_directory, prepare_images
    from training.data.prepare.output import check_not_nested

    if options.folder:
        check_not_nested(options.folder, options.target)
        channels: Literal[1, 3] = 1 if options.grey else 3
        size = options.size or DEFAULT_SIZE
        minimum = options.min_size or size
        held_out = options.held_out or DEFAULT_HELD_OUT
        workers = options.workers or available_cores()
        source = from_directory(options.folder, (channels, size, size), minimum, held_out, workers)
        settings = {"size": size, "min_size": minimum, "held_out": held_out}
    else:
        for name in ("size", "grey", "min_size", "held_out", "workers"):
            if getattr(options, name):
                flag = f"--{name.replace('_', '-')}"
                raise DataError(f"{flag} applies to --folder only: leave it out with --dataset")
        source = from_dataset(options.dataset, options.data_dir)
        settings = {"dataset": options.dataset}
    manifest = prepare_images(
        source,
        options.target,
        limit=options.max_mib * 2**20,
        force=options.force,
        settings=settings,
        report=report_stderr,
    )
    return _summary(options.target, manifest)


def _text(options: argparse.Namespace) -> str:
    from training.data.prepare.output import check_not_nested
    from training.data.prepare.text import bytes_encoder, prepare_text, tokenizer_encoder

    check_not_nested(options.folder, options.target)
    if options.end_of_text is not None and not options.tokenizer:
        raise DataError(
            f"--end-of-text {options.end_of_text} needs --tokenizer: bytes have no such token"
        )
    settings = {"held_out": options.held_out, "min_bytes": options.min_bytes}
    encoder = bytes_encoder()
    if options.tokenizer:
        encoder = tokenizer_encoder(options.tokenizer, options.end_of_text)
    settings |= {} if options.field == DEFAULT_FIELD else {"field": options.field}
    settings |= {} if options.end_of_text is None else {"end_of_text": options.end_of_text}
    manifest = prepare_text(
        options.folder,
        options.target,
        encoder,
        field=options.field,
        held_out=options.held_out,
        minimum=options.min_bytes,
        limit=options.max_mib * 2**20,
        force=options.force,
        settings=settings,
        report=report_stderr,
    )
    return _summary(options.target, manifest)


def _check(options: argparse.Namespace) -> str:
    from training.data import check_prepared

    return _summary(options.target, check_prepared(options.target, report_stderr))


def _validate(options: argparse.Namespace) -> str:
    from training.data import load
    from training.data.validation import examine, problems, read_report, write_report

    if options.context and options.dataset not in ("text", "tokens"):
        raise DataError("--context requires --dataset text or --dataset tokens: leave it out")
    shape = (options.context,) if options.context else None
    earlier = read_report(options.against) if options.against else None
    # Skip the verification of digests here, because training verifies the files of prepared data.
    data = load(
        options.dataset, options.data_dir, shape, seed=0, verification=None, report=report_stderr
    )
    report = examine(options.dataset, data, options.samples)
    found = list(problems(report, earlier, options.min_class_share, options.max_drift))
    write_report(options.target, report.model_copy(update={"problems": tuple(found)}))
    if found:
        raise DataError(
            "\n".join([f"{options.dataset} is not valid:", *(f"  - {p}" for p in found)])
        )
    parts = f"{report.train.samples:,} training and {report.held_out.samples:,} held-out samples"
    return f"{options.dataset} is valid: {parts}\n"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text}")
    return int(text)


def _image_side(text: str) -> int:
    if _positive(text) > 4096:
        raise argparse.ArgumentTypeError(f"must be at most 4096, not {text}")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, not {text}")
    return share


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m training.data",
        description="Prepare data sets for training, and check them.",
        epilog="Exit codes: 0 done, 64 invalid input or a damaged data set, 130 or 143 "
        "interrupted; any other code means a failure, such as a full disk.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prepare = commands.add_parser(
        "prepare",
        help="clean, split and pack images or text",
        description="Clean, split and pack images or text. Images and texts are dropped and "
        "counted if they are unreadable, too small or duplicates. Files are moved to the target "
        "only when all are complete. The manifest, which contains their digests, is moved last. "
        "An interrupted command can be run again.",
        allow_abbrev=False,
    )
    kinds = prepare.add_subparsers(required=True, metavar="KIND")
    _add_images(kinds.add_parser(
        "images",
        help="pack labeled images into shards (--dataset=shards)",
        description="Pack labeled images into WebDataset shards. To train on them, name the "
        "target directory `shards`, pass --dataset=shards, and pass the directory that contains "
        "the target as --data-dir.",
        allow_abbrev=False,
    ))  # fmt: skip
    _add_text(kinds.add_parser(
        "text",
        help="convert text files to tokens (--dataset=tokens)",
        description="Convert all *.txt, *.jsonl and *.parquet files in a directory to tokens. To "
        "train on them, name the target directory `tokens`, pass --dataset=tokens, and pass the "
        "directory that contains the target as --data-dir.",
        allow_abbrev=False,
    ))  # fmt: skip
    check = commands.add_parser(
        "check",
        help="verify the digests of a prepared data set",
        description="Compare every file of a prepared data set with its manifest.",
        allow_abbrev=False,
    )
    check.add_argument("target", type=Path, metavar="DIR", help="directory with manifest.json")
    check.set_defaults(run=_check)
    _add_validate(
        commands.add_parser(
            "validate",
            help="check schema, ranges, class balance and drift of a data set",
            description="Examine samples of a data set, and write a report with their statistics. "
            "The command fails if all values are equal, if a value is NaN or infinite, if a "
            "class number is invalid, if a class has too few samples, or if the data differ from "
            "the data set that --against describes.",
            allow_abbrev=False,
        )
    )
    return parser


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset", required=True, metavar="NAME",
        help="data set as in a training run, such as digits, shards, tokens or my_data:Halves",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", type=Path, default=Path("/data"), metavar="DIR",
        help="directory of the data set (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=Path, metavar="REPORT",
        help="report of an earlier data set to compare with (schema and distributions)",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=_positive, default=20_000, metavar="N",
        help="maximum number of samples to examine in each split (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=_positive, metavar="N",
        help="context length (tokens) of the model for --dataset text or tokens (default: 256)",
    )  # fmt: skip
    parser.add_argument(
        "--min-class-share", type=_share, default=0.1, metavar="X",
        help="minimum share of each class, as a fraction of its share in a balanced data set "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-drift", type=_share, default=0.2, metavar="X",
        help="maximum population stability index of classes and values (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("target", type=Path, metavar="REPORT", help="JSON file to write")
    parser.set_defaults(run=_validate)


def _add_images(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="directory with one subdirectory of images per class",
    )
    known = [name for name in IMAGES if name not in ("shards", "synthetic")]
    source.add_argument(
        "--dataset", choices=known, help="built-in data set; its split and image size are kept"
    )
    parser.add_argument(
        "--data-dir", type=Path, default=Path("/data"), metavar="DIR",
        help="directory of the data set that --dataset names; not used for data sets that ship "
        "with a package (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--size", type=_image_side, metavar="N",
        help="height and width (pixels) to which the images in --folder are scaled after a square "
        f"crop (default: {DEFAULT_SIZE})",
    )  # fmt: skip
    parser.add_argument(
        "--grey", action="store_true", help="convert the images in --folder to one channel"
    )
    parser.add_argument(
        "--min-size", type=_positive, metavar="N",
        help="minimum height and width (pixels); smaller images are dropped "
        "(default: the value of --size)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=_positive, metavar="N",
        help="number of images in --folder to read in parallel "
        f"(default: one per CPU, {available_cores()})",
    )  # fmt: skip
    _add_common(parser, "share of the images in --folder to hold out")
    parser.set_defaults(run=_images, held_out=None)


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR",
        help="directory with *.txt files (one text each), *.jsonl files (one text per line) and "
        "*.parquet files (one text per row)",
    )  # fmt: skip
    parser.add_argument(
        "--field", default=DEFAULT_FIELD, metavar="NAME",
        help="field of *.jsonl lines, or column of *.parquet files, that contains the text "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE",
        help="tokenizer.json; needs the tokenizers package (default: one token per byte)",
    )  # fmt: skip
    parser.add_argument(
        "--end-of-text", metavar="TOKEN",
        help="token of the tokenizer to append to every text (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--min-bytes", type=_positive, default=64, metavar="N",
        help="minimum length (bytes) of a text; shorter ones are dropped (default: %(default)s)",
    )  # fmt: skip
    _add_common(
        parser,
        "share to hold out of each *.txt file (its end), of the *.jsonl lines and of the "
        "*.parquet rows",
    )
    parser.set_defaults(run=_text)


def _add_common(parser: argparse.ArgumentParser, held_out_help: str) -> None:
    parser.add_argument(
        "--held-out", type=_share, default=DEFAULT_HELD_OUT, metavar="X",
        help=f"{held_out_help} (default: {DEFAULT_HELD_OUT})",
    )  # fmt: skip
    parser.add_argument(
        "--max-mib", type=_positive, default=256, metavar="N",
        help="maximum size in MiB of each file of the data set (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="replace an existing data set in the target"
    )
    parser.add_argument("target", type=Path, metavar="DIR", help="directory to write")


if __name__ == "__main__":
    # PID 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main(sys.argv[1:]))
