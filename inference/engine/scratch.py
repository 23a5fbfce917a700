"""Where models that are compiled at the start are kept: for other workers, and for a restart."""

import os
import stat
import tempfile
from pathlib import Path


def scratch_folder() -> Path:
    """A folder below the temporary ones that nobody else can write: what lies there is code.

    The same at every start, so that a container that is restarted compiles nothing again.
    """
    folder = Path(tempfile.gettempdir()) / f"inference-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if ours and not stat.S_IMODE(found.st_mode) & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="inference-"))


def forget(folder: Path, sha256: str) -> None:
    """Remove what was compiled of these weights."""
    for path in folder.glob(f"{sha256}*"):
        path.unlink(missing_ok=True)
