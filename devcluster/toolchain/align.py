"""`python -m devcluster.toolchain.align`: align dependencies of modules that are built together.

Go compiles a package once for all programs that use the same version of it. Run this after a
version in one of the go.mod files has changed; a unit test fails when they disagree.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from packaging.version import Version

from devcluster.toolchain import go, pins

OWN_VERSIONS = re.compile(r"github\.com/pulumi/(esc|pulumi/(pkg|sdk)/v3)|k8s\.io/cri-(api|client)")
"""Dependencies that differ on purpose; pins.toml states the reason."""

Versions = dict[str, str]


def built_together() -> list[Path]:
    """Return the directories of the modules that share their packages."""
    return [module.folder for module in pins.load().modules if module.shared]


def versions(folder: Path) -> Versions:
    """Return the versions that a module's go.mod requires, and as `path =>` their replacements.

    Both have to agree: Go compiles a package again if either differs.
    """
    text = (folder / "go.mod").read_text()
    required = dict(re.findall(r"^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", text, re.MULTILINE))
    replaced = re.findall(r"^replace (\S+) => \S+ (v\S+)", text, re.MULTILINE)
    return {**required, **{f"{path} =>": version for path, version in replaced if path in required}}


def disagreements() -> dict[str, dict[str, str]]:
    """Return versions by module folder for each dependency that has more than one version."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for folder in built_together():
        for path, version in versions(folder).items():
            found[path][folder.name] = version
    return {
        path: by_folder
        for path, by_folder in found.items()
        if len(set(by_folder.values())) > 1 and not OWN_VERSIONS.fullmatch(path.removesuffix(" =>"))
    }


def order(version: str) -> tuple[Version, bool, str]:
    """Return a sort key for a Go version: pseudo-versions sort by their time stamp."""
    number, _, suffix = version.removeprefix("v").partition("+")[0].partition("-")
    return Version(number), not suffix, suffix


def _option(path: str, version: str) -> str:
    """Return the option of `go mod edit` that sets a version, for a key of `versions`."""
    name = path.removesuffix(" =>")
    return f"-require={name}@{version}" if name == path else f"-replace={name}={name}@{version}"


def align() -> None:
    """Raise every shared dependency to its highest version until no two modules disagree."""
    while found := disagreements():
        for folder in built_together():
            raised = [
                _option(path, max(by_folder.values(), key=order))
                for path, by_folder in found.items()
                if folder.name in by_folder
            ]
            if not raised:
                continue
            for command in (["mod", "edit", *raised], ["mod", "tidy", "-e"]):
                environment = go.environment() | {"GOFLAGS": "-mod=mod"}
                subprocess.run(["go", *command], cwd=folder, env=environment, check=True)
        print(f"{len(found)} dependencies raised", file=sys.stderr)


if __name__ == "__main__":
    align()
