"""Options of torchtitan, in the version that requirements/torchtitan.txt pins."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Final

from tools.environments import environment

ROOT: Final = Path(__file__).resolve().parents[2]
PINS: Final = ROOT / "requirements/torchtitan.txt"
FILE: Final = ROOT / "infra/settings/training/torchtitan.json"
PROGRAM: Final = Path(__file__).with_name("titan_options.py")


def titan_schema() -> str:
    """Return the text of torchtitan.json, which is regenerated only if the pins have changed.

    The packages are large, so `make check` does not install them.
    """
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if FILE.exists() and json.loads(text := FILE.read_text())["requirements"] == pins:
        return text
    return generate(pins)


def generate(pins: str) -> str:
    """Run `PROGRAM` in torchtitan's environment; return its output and the hash `pins` as JSON."""
    command = [str(environment("torchtitan", inherits=True)), str(PROGRAM)]
    options = json.loads(subprocess.check_output(command, text=True))
    return json.dumps({"requirements": pins, **options}, indent=1) + "\n"
