"""What has to fit between concerns: each check is told the concerns that it compares.

A check runs only when the concerns that it needs are valid by themselves, so that one mistake is
reported once.
"""

from infra.settings.checks import capacity, hardware, logs, queues, references, storage
from infra.settings.checks.registry import CHECKS

__all__ = ["CHECKS", "capacity", "hardware", "logs", "queues", "references", "storage"]
