"""`python -m devcluster.toolchain.align`: align the dependencies of modules that share packages.

Go compiles a package once for all programs that use the same version of it. Run this command after
a version in a go.mod file has changed. A unit test fails if the versions disagree.
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from packaging.version import Version

from devcluster.toolchain import go, pins

UNALIGNED = re.compile(r"github\.com/pulumi/(esc|pulumi/(pkg|sdk)/v3)|k8s\.io/cri-(api|client)")
"""Dependencies whose versions intentionally differ. pins.toml states the reasons."""

Versions = dict[str, str]


def shared_module_directories() -> list[Path]:
    """Return the directories of the modules that share packages."""
    return [module.directory for module in pins.load().modules if module.shared]


def versions(directory: Path) -> Versions:
    """Return the versions of the requirements and replacements in a module's go.mod, by path.

    The key of a replacement is `path =>`. Modules must agree on both, because Go compiles a package
    again if either differs.
    """
    text = (directory / "go.mod").read_text()
    required = dict(re.findall(r"^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", text, re.MULTILINE))
    replaced = re.findall(r"^replace (\S+) => \S+ (v\S+)", text, re.MULTILINE)
    return {**required, **{f"{path} =>": version for path, version in replaced if path in required}}


def disagreements() -> dict[str, dict[str, str]]:
    """Map each dependency whose versions differ to its version in each module."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for directory in shared_module_directories():
        for path, version in versions(directory).items():
            found[path][directory.name] = version
    return {
        path: by_module
        for path, by_module in found.items()
        if len(set(by_module.values())) > 1 and not UNALIGNED.fullmatch(path.removesuffix(" =>"))
    }


def sort_key(version: str) -> tuple[Version, bool, str]:
    """Return a sort key for a Go version. Pseudo-versions sort by their timestamp."""
    number, _, suffix = version.removeprefix("v").partition("+")[0].partition("-")
    return Version(number), not suffix, suffix


def _option(path: str, version: str) -> str:
    """Return the `go mod edit` option that sets the version for a key of `versions`."""
    name = path.removesuffix(" =>")
    return f"-require={name}@{version}" if name == path else f"-replace={name}={name}@{version}"


def align() -> None:
    """Upgrade each shared dependency to its highest version until all modules agree."""
    while different := disagreements():
        for directory in shared_module_directories():
            raised = [
                _option(path, max(by_module.values(), key=sort_key))
                for path, by_module in different.items()
                if directory.name in by_module
            ]
            if not raised:
                continue
            for command in (["mod", "edit", *raised], ["mod", "tidy", "-e"]):
                environment = go.environment() | {"GOFLAGS": "-mod=mod"}
                subprocess.run(["go", *command], cwd=directory, env=environment, check=True)
        print(f"upgraded {len(different)} dependencies", file=sys.stderr)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    align()
