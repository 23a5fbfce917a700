"""Files that are whole or not there."""

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a file so that nobody sees a part of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    temporary = Path(name)
    temporary.chmod(0o644)
    temporary.replace(path)
