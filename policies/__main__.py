"""Entry point of the policy pack, for `pulumi up --policy-pack policies`."""

import gc
import sys
from pathlib import Path

# The imports create no garbage, but garbage collection would take a fifth of their time.
gc.disable()

# The engine runs this directory as a program, so Python puts the directory first in sys.path, where
# its modules would hide other modules of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from policies.sdk import check  # noqa: E402  after the path is set

check()

from policies.pack import serve  # noqa: E402  after the SDK is checked

serve()
