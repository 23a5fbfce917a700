"""Build of the `gpu_platform` package; the metadata is in pyproject.toml.

In the checkout, infra/, policies/, training/, inference/, workload/ and kube/ are packages.
Packages with such common names must not be installed into other people's environments, so the wheel
contains them as subpackages of gpu_platform with rewritten imports. In the checkout, the packages
keep their short names, because images, pod commands and `sources` in stack files use them.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = "gpu_platform"
DIRECTORIES = ("infra", "policies", "training", "inference", "workload", "kube")
IMPORT = re.compile(rf"^(\s*from )(?=(?:{'|'.join(DIRECTORIES)})\b)", re.MULTILINE)

# Modules to copy from packages that are not copied completely: public modules, and modules that
# infra/ imports. None of these modules imports torch.
PARTIAL_PACKAGES = {
    # `__main__` is omitted: it starts the plugin and the commands for teams, which need a checkout.
    PACKAGE: {"__init__", "facade", "platform_stack", "readable"},
    f"{PACKAGE}.training": {"__init__", "config", "settings"},
    f"{PACKAGE}.inference": {"__init__", "config"},
    f"{PACKAGE}.workload": {
        "__init__",
        "catalog",
        "configuration",
        "custom",
        "exit_codes",
        "files",
        "manifest",
        "progress",
        "promotion",
        "results",
        "store",
    },
}

PACK = Path("policies", "PulumiPolicy.yaml")
# Path from the policy pack to its virtual environment: in the checkout, and in an installed package
# (lib/python3.X/site-packages/gpu_platform/policies).
VIRTUALENVS = ("../.venv", "../../../../..")


class BuildComponents(build_py):
    """Build command that copies the modules that the components need and rewrites their imports."""

    def run(self) -> None:
        """Copy the modules, and the PulumiPolicy.yaml that starts the policy pack."""
        super().run()
        target = Path(self.build_lib, PACKAGE, PACK)
        target.write_text(PACK.read_text().replace(*VIRTUALENVS))

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the package, name and file of each module to copy."""
        return [
            found
            for found in super().find_package_modules(package, package_dir)
            if found[1] in PARTIAL_PACKAGES.get(package, {found[1]})
        ]

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy a module and return its new path."""
        target, copied = super().build_module(module, module_file, package)
        path = Path(target)
        path.write_text(IMPORT.sub(rf"\1{PACKAGE}.", path.read_text()))
        return target, copied


def packages(directory: str) -> list[str]:
    """Return the dotted names of the packages to copy from a directory of the checkout."""
    return sorted(
        ".".join(file.parent.parts)
        for file in Path(directory).rglob("__init__.py")
        if f"{PACKAGE}.{'.'.join(file.parent.parts)}" in PARTIAL_PACKAGES
        or directory in ("infra", "policies", "kube")
    )


components = [name for directory in DIRECTORIES for name in packages(directory)]
setup(
    packages=[PACKAGE, f"{PACKAGE}.plugin"] + [f"{PACKAGE}.{name}" for name in components],
    package_dir={f"{PACKAGE}.{directory}": directory for directory in DIRECTORIES},
    package_data={
        PACKAGE: ["py.typed"],
        f"{PACKAGE}.infra.settings.training": ["torchtitan.json"],
    },
    cmdclass={"build_py": BuildComponents},
)
