"""What one root file system has beyond another, as a layer on top of that one."""

import tarfile
from pathlib import Path

Facts = tuple[object, ...]


def write(larger: Path, smaller: Path, to: Path) -> None:
    """Writes to the tar file `to` what is in `larger` and not the same in `smaller`.

    Both are tar files, compressed or not. Files of a package have the package's time, so that the
    same size and time are the same content. What is missing in `larger` stays: packages are only
    added.
    """
    with tarfile.open(smaller) as archive:
        known = {member.name: _facts(member) for member in archive}
    with tarfile.open(larger) as source, tarfile.open(to, "w", format=tarfile.PAX_FORMAT) as target:
        for member in source:
            if known.get(member.name) != _facts(member):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)


def _facts(member: tarfile.TarInfo) -> Facts:
    # The times of folders and of what points elsewhere are those of the installation.
    time = member.mtime if member.isreg() else None
    owner = (member.uid, member.gid, member.mode)
    return member.type, member.size, member.linkname, owner, time
