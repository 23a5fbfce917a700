"""Which releases were compared."""

import json
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from benchmarks.inference.contestants import Contestant
from benchmarks.inference.environments import python_of

_ASK: Final = "import importlib.metadata as m, json; print(json.dumps(m.version('{}')))"


def versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    """PyTorch's, and each peer's."""
    found = {"PyTorch": version("torch")}
    for one in contestants:
        if one.environment:
            command = [str(python_of(one.environment)), "-c", _ASK.format(one.environment)]
            found[one.name] = json.loads(subprocess.check_output(command))
    return found
