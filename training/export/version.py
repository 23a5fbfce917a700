"""Which program trained a model."""

import hashlib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "CODE_VERSION"
"""Says it where it is known, such as the commit that an image was built from."""


def code_version() -> str:
    """CODE_VERSION, or a digest of the sources of the training package: `sources-` and 12 digits.

    Equal digests are equal programs, whatever the checkout or the image.
    """
    return os.environ.get(VARIABLE) or f"sources-{_digest(Path(__file__).parents[1])}"


def _digest(package: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    return whole.hexdigest()[:12]
