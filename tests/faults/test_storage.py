"""A damaged newest checkpoint, and a volume without space for the next one."""

import contextlib
import time
from pathlib import Path
from typing import Any

from tests.cluster.platform import await_
from tests.faults.arena import Arena
from tests.faults.gangs import Gang, slow_steps

CLAIM = "/var/lib/shared-volumes/checkpoints"
VOLUME_MIB = 64
"""MiB of the claim that is filled."""


def test_run_resumes_from_an_earlier_checkpoint_if_the_newest_is_damaged(arena: Arena) -> None:
    def damage(gang: Gang) -> None:
        # Only rank 0 writes here, and it must not write another checkpoint after the damage.
        found = [arena.units.container(arena.container(pod))[0] for pod in gang.pods]
        for process in found:
            process.kill()
        folder = arena.units.state / "volumes" / "checkpoints" / gang.name / "checkpoints"
        newest = max(path for path in folder.iterdir() if (path / "checkpoint.json").exists())
        (file, *_) = sorted(newest.glob("*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    fault = "all containers killed, newest checkpoint corrupted by one bit"
    arena.survive(fault, damage, intervals=2, change=slow_steps(0.1))


def test_run_survives_a_full_claim(arena: Arena) -> None:
    node = "gpu-node-1"

    def use_small_volume(pod: dict[str, Any]) -> None:
        # Only one node has a volume that is small enough to be filled.
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), "kubernetes.io/hostname": node}
        pod.pop("topologySpreadConstraints", None)

    def fill(gang: Gang) -> None:
        inside = Path(f"/proc/{arena.units.node(node).pid}/root") / CLAIM.lstrip("/")
        assert inside.stat().st_dev != inside.parent.stat().st_dev, (
            "refusing to fill the host's disk"
        )
        filler = inside / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            for _ in range(VOLUME_MIB * 16):
                stream.write(bytes(2**16))
        events_of = gang.timeline.events
        await_(
            lambda: any("waiting" in str(e.body) for e in events_of("warning")),
            "the run waits for space",
        )
        time.sleep(5)
        filler.unlink()

    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MIB}m,mode=777", "small", CLAIM]
    arena.units.inside(node, *mount)
    try:
        arena.survive("claim full, then space freed", fill, intervals=2, change=use_small_volume)
    finally:
        arena.units.inside(node, "umount", "--lazy", CLAIM)
