"""Version of the program that trained a model."""

import hashlib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "CODE_VERSION"
"""Set to a version, such as the commit that an image was built from."""

PACKAGES: Final = ("training", "workload")


def code_version() -> str:
    """Return CODE_VERSION, or `sources-` and 12 digits of a digest of the program's sources.

    Equal digests are equal programs, whatever the checkout or the image.
    """
    return os.environ.get(VARIABLE) or f"sources-{_digest(Path(__file__).parents[2])}"


def _digest(root: Path) -> str:
    complete = hashlib.sha256()
    for path in sorted(path for name in PACKAGES for path in (root / name).rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        complete.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return complete.hexdigest()[:12]
