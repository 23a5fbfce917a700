"""Components of this project for other Pulumi programs; see docs/reuse.md.

The installed package also contains the policies, which must work without Pulumi. The components
require Pulumi, so they are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_platform.facade import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        facade = import_module("gpu_platform.facade")
        if name == "__all__":
            return facade.__all__
        if name not in facade.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("gpu_platform.readable").readable(getattr(facade, name))
