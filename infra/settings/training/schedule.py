"""Schedule of a job: start times, and the number of finished runs to keep."""

import re
from datetime import datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    MemoryQuantity,
    PortNumber,
    PositiveInt,
    Settings,
)

_VALUE: Final = r"([0-9]+|[a-z]{3})"
_ITEM: Final = rf"(\*|{_VALUE}(-{_VALUE})?)(/[0-9]+)?"
_FIELD: Final = re.compile(rf"{_ITEM}(,{_ITEM})*", re.IGNORECASE)
_SUNDAY: Final = re.compile(r"(?<![/\d])7(?!\d)")
_STEP_WITHOUT_RANGE: Final = re.compile(r"(?:^|,)\w+/")
_EXPECTED_FORMAT: Final = (
    "must have five fields: minute, hour, day of the month, month and day of the week, such as "
    '"0 3 * * *" for 3:00 every day'
)


def _cron(text: str) -> str:
    """Reject schedules that Kubernetes would reject or interpret differently from cronsim."""
    fields = text.split(" ")
    if len(fields) != 5 or not all(map(_FIELD.fullmatch, fields)):
        raise ValueError(_EXPECTED_FORMAT)
    if _SUNDAY.search(fields[4]):
        raise ValueError("uses 7 as the day of the week: write 0 for Sunday")
    if _STEP_WITHOUT_RANGE.search(fields[4]):
        # cronsim would extend this step to 7 (Sunday), but Kubernetes only to 6.
        raise ValueError(
            "uses a step without a range as the day of the week: write the range, such as 1-6/2 "
            "instead of 1/2"
        )
    days = (fields[2], fields[4])
    if "*" not in days and any("*" in day for day in days):
        raise ValueError(
            "restricts both the day of the month and the day of the week, and at least one of them "
            "contains * (such as */2): set one of them to *"
        )
    try:
        next(CronSim(text, datetime(2000, 1, 1)))
    except CronSimError as error:
        raise ValueError(f"{_EXPECTED_FORMAT} ({error})") from None
    except StopIteration:
        raise ValueError("never starts: the date does not exist in any year") from None
    return text


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            "is not a time zone of the IANA database: use one such as Europe/Berlin"
        ) from None
    return name


class ScheduleSettings(Settings):
    """Schedule on which a job starts new runs. A run starts only after the previous run ends."""

    cron: Annotated[str, AfterValidator(_cron)] = Field(
        description="Minute, hour, day of the month, month and day of the week, as in a CronJob: "
        '"0 3 * * *" is 3:00 every day.'
    )
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="Etc/UTC", description="Time zone of `cron`, such as Europe/Berlin."
    )
    suspend: bool = Field(
        default=False,
        description="Do not start additional runs. Changing this setting does not start a run.",
    )
    keep_succeeded: int = Field(
        default=3, ge=0, le=100, description="Number of succeeded runs that stay in the cluster."
    )
    keep_failed: int = Field(
        default=3, ge=0, le=100, description="Number of failed runs that stay in the cluster."
    )
    start_within_seconds: PositiveInt | None = Field(
        default=None,
        ge=10,
        description="Maximum time (s) by which a start may be delayed, for example by a previous "
        "run that is still running. Starts delayed for longer are skipped. If null, there is no "
        "limit.",
    )
    image: DnsLabel = Field(
        default="recorder",
        description="Key of the image with the program that starts the runs, built from recorder/.",
    )
    cpu: CpuQuantity = Field(default="10m", description="CPU request of the program.")
    memory: MemoryQuantity = Field(
        default="128Mi", description="Memory request and limit of the program."
    )
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="Ports of the API server. With network isolation, the program may connect only "
        "to these.",
    )

    def next_start(self, now: datetime) -> datetime:
        """Return the next time at which a run starts, in the schedule's time zone."""
        # The seconds field `0` disables cronsim's emulation of Debian's cron, which delays starts
        # in the hour that daylight saving time skips. Kubernetes omits these starts.
        return next(CronSim(f"0 {self.cron}", now.astimezone(ZoneInfo(self.time_zone))))
