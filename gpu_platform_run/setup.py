"""Build of the `gpu_platform_run` package from workload/run.py and the modules that it uses.

In the checkout, these modules belong to the `workload` package. A package with such a common name
must not be installed into other projects' environments, so the build copies the modules into
`gpu_platform_run` and rewrites their imports.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = "gpu_platform_run"
WORKLOAD = Path("..") / "workload"
MODULES = ("run", "exit_codes", "files", "report", "terminal", "tracking")
IMPORT = re.compile(r"^(\s*from )workload\b", re.MULTILINE)


class BuildLibrary(build_py):
    """Build step that copies the modules into one package."""

    def run(self) -> None:
        """Write the modules to the package."""
        directory = Path(self.build_lib) / PACKAGE
        self.mkpath(str(directory))
        for name in MODULES:
            text = IMPORT.sub(rf"\1{PACKAGE}", (WORKLOAD / f"{name}.py").read_text())
            (directory / f"{'__init__' if name == 'run' else name}.py").write_text(text)
        (directory / "py.typed").touch()


setup(packages=[PACKAGE], package_dir={PACKAGE: "."}, cmdclass={"build_py": BuildLibrary})
