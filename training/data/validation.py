"""Validation of a data set before training: schema, ranges, class balance and drift."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.data.samples import DataError, Dataset, Samples, read_error, spread
from workload.configuration import first_problem
from workload.files import write_atomically

BINS: Final = 32
_BATCH: Final = 512
_MIN_SHARE: Final = 1e-4
"""Minimum share of a bin. It replaces smaller shares, so that the stability index is finite."""


class PartReport(BaseModel):
    """Statistics of the training samples, or of the held-out samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int = Field(ge=0, description="Number of samples.")
    examined: int = Field(ge=0, description="Number of examined samples.")
    minimum: float = Field(description="Smallest value of the inputs.")
    maximum: float = Field(description="Largest value of the inputs.")
    mean: float
    deviation: float = Field(ge=0, description="Standard deviation of the values.")
    not_finite: int = Field(ge=0, description="Number of NaN and infinite values.")
    values: tuple[float, ...] = Field(description="Shares of the values in bins of equal width.")
    classes: dict[str, float] = Field(description="Shares of the classes; empty for tokens.")
    wrong_targets: int = Field(ge=0, description="Number of targets that are not valid classes.")


class DataReport(BaseModel):
    """Report of a validation. Later data sets can be compared with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    dataset: str
    data_sha256: str = Field(description="Digest of the data set, as in the manifest of an export.")
    shape: tuple[int, ...] = Field(description="Shape of a sample.")
    dtype: str = Field(description="Data type of the inputs.")
    classes: tuple[str, ...] = Field(description="Class names; empty for tokens.")
    low: float = Field(description="Lower edge of the first bin.")
    high: float = Field(description="Upper edge of the last bin.")
    train: PartReport
    held_out: PartReport
    problems: tuple[str, ...] = Field(
        default=(), description="Reasons why the data set is invalid."
    )

    @property
    def parts(self) -> Mapping[str, PartReport]:
        """Reports of the parts, by name."""
        return {"train": self.train, "held_out": self.held_out}


def examine(name: str, data: Dataset, limit: int) -> DataReport:
    """Return the statistics of up to `limit` samples of each part."""
    first, _ = data.train.batch(np.zeros(1, np.int64))
    # Floating-point inputs have no natural range, so the bins cover the usual range of standardized
    # values.
    largest = float(data.train.divisor if data.classes else data.outputs)
    low, high = (-4.0, 4.0) if first.dtype.kind == "f" else (0.0, largest + 1)
    edges = np.linspace(low, high, BINS + 1)
    return DataReport(
        dataset=name,
        data_sha256=data.identity,
        shape=data.shape,
        dtype=str(first.dtype),
        classes=data.classes,
        low=low,
        high=high,
        train=_statistics(data, data.train, edges, limit),
        held_out=_statistics(data, data.held_out, edges, limit),
    )


def _statistics(
    data: Dataset, samples: Samples, edges: NDArray[np.float64], limit: int
) -> PartReport:
    chosen = spread(len(samples), limit)
    bins, found = np.zeros(BINS), np.zeros(max(data.outputs, 1), np.int64)
    total = squares = 0.0
    count = not_finite = wrong = 0
    minimum, maximum = np.inf, -np.inf
    for start in range(0, len(chosen), _BATCH):
        inputs, targets = samples.batch(chosen[start : start + _BATCH])
        values = inputs.astype(np.float64).ravel()
        finite = values[np.isfinite(values)]
        not_finite += values.size - finite.size
        if finite.size:
            minimum, maximum = min(minimum, finite.min()), max(maximum, finite.max())
            bins += np.histogram(np.clip(finite, edges[0], edges[-1]), edges)[0]
            total, squares = total + finite.sum(), squares + np.square(finite).sum()
            count += finite.size
        allowed = targets[(targets >= 0) & (targets < data.outputs)]
        wrong += targets.size - allowed.size
        found += np.bincount(allowed.ravel(), minlength=len(found))
    mean = total / max(count, 1)
    return PartReport(
        samples=len(samples),
        examined=len(chosen),
        minimum=float(minimum) if count else 0.0,
        maximum=float(maximum) if count else 0.0,
        mean=float(mean),
        deviation=float(np.sqrt(max(squares / max(count, 1) - mean**2, 0.0))),
        not_finite=not_finite,
        values=tuple(float(share) for share in bins / max(bins.sum(), 1)),
        classes={
            name: float(number / max(found.sum(), 1))
            for name, number in zip(data.classes, found, strict=False)
        },
        wrong_targets=wrong,
    )


def problems(
    report: DataReport, earlier: DataReport | None, min_class_share: float, max_drift: float
) -> Iterator[str]:
    """Yield a sentence for each failed check. `earlier` is the report of an earlier data set."""
    if earlier is not None:
        for name in ("shape", "dtype", "classes"):
            found, before = getattr(report, name), getattr(earlier, name)
            if found != before:
                yield f"{name} is {_text(found)}, but was {_text(before)} in the earlier data set"
    for split, part in report.parts.items():
        yield from _range_problems(split, part)
        limit = min_class_share / max(len(report.classes), 1)
        for name, share in part.classes.items():
            if share < limit:
                yield f"{split}: class {name} has {share:.2%} of the samples, less than {limit:.2%}"
    if earlier is None:
        return
    for split, part in report.parts.items():
        before = earlier.parts[split]
        distributions = {"values": (part.values, before.values)}
        if part.classes.keys() == before.classes.keys():
            classes = (tuple(part.classes.values()), tuple(before.classes.values()))
            distributions["classes"] = classes
        for name, (current, previous) in distributions.items():
            if (drift := stability_index(current, previous)) > max_drift:
                yield (
                    f"{split}: {name} differ from the earlier data set (population stability index "
                    f"{drift:.3f}, more than {max_drift:g})"
                )


def _range_problems(split: str, part: PartReport) -> Iterator[str]:
    if part.not_finite:
        yield f"{split}: {part.not_finite:,} values are NaN or infinite"
    if part.wrong_targets:
        yield f"{split}: {part.wrong_targets:,} targets are not valid class indices"
    if part.minimum == part.maximum:
        yield f"{split}: all values are {part.minimum:g}"


def stability_index(current: tuple[float, ...], previous: tuple[float, ...]) -> float:
    """Return the population stability index of two distributions; 0 if they are equal."""
    actual, expected = (np.maximum(np.array(each), _MIN_SHARE) for each in (current, previous))
    return float(((actual - expected) * np.log(actual / expected)).sum())


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def write_report(path: Path, report: DataReport) -> None:
    """Write a report as JSON, and create its directory if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (report.model_dump_json(indent=2) + "\n").encode())


def read_report(path: Path) -> DataReport:
    """Read the report of an earlier validation; raise DataError if it is missing or invalid."""
    try:
        return DataReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise DataError(f"{path} is not a validation report: {problem}") from None
