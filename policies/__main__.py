"""Policy pack for Pulumi. `pulumi up --policy-pack policies` starts this program.

Use `python -m policies.check --help` to check manifests without Pulumi.
"""

import gc
import sys
from pathlib import Path

# Without the address of Pulumi's engine, the SDK would serve the pack until it is killed.
if not sys.argv[1:] or sys.argv[1] in {"-h", "--help"}:
    sys.stderr.write(__doc__)
    raise SystemExit(2 if not sys.argv[1:] else 0)

# The imports create no garbage, but garbage collection would take a fifth of their time.
gc.disable()

# The engine runs this directory as a program, so Python puts the directory first in sys.path, where
# its modules would hide other modules of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from policies.sdk import check  # noqa: E402  after the path is set

check()

from policies.pack import serve  # noqa: E402  after the SDK is checked

serve()
