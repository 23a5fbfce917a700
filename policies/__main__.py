"""Entry point of the policy pack, for `pulumi --policy-pack policies`."""

import gc
import sys
from pathlib import Path

# Imports create no garbage, but garbage collection would take a fifth of their time.
gc.disable()

# The engine runs this directory as a program, which puts it first in sys.path. There, its modules
# would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from policies.sdk import check  # noqa: E402  after the path is set

check()

from policies.pack import serve  # noqa: E402  after the SDK is checked

serve()
