"""Killed processes, containers and pods of a run and of a server, at the same time."""

from pathlib import Path

from tests.faults.arena import NAMESPACE, Arena
from tests.faults.gangs import Gang, slow_steps
from tests.faults.losses import answered_with_503, lost_by_one_server
from tests.faults.units import worker_of

# Sixteen processes exceed the memory limit. Each uses less memory than the training process, so the
# kernel kills the training process.
ALLOCATE_MEMORY = (
    "import os, time; [os.fork() for _ in range(4)]; x = b'x' * (70 * 2**20); time.sleep(60)"
)


def test_run_and_service_survive_a_killed_process(arena: Arena) -> None:
    def kill(gang: Gang) -> None:
        server = arena.container(arena.servers()[0]["metadata"]["name"])
        worker_of(arena.units.container(server)).kill()
        _, trainer, *_ = arena.units.container(arena.container(gang.pods[1]))
        trainer.kill()

    arena.survive(
        "training process and a server's worker killed", kill, intervals=1, lost=answered_with_503
    )


def test_run_and_service_survive_a_killed_container(arena: Arena) -> None:
    def kill(gang: Gang) -> None:
        for pod in (gang.pods[1], arena.servers()[1]["metadata"]["name"]):
            arena.units.container(arena.container(pod))[0].kill()

    fault = "one training container (PID 1 is torchrun) and one server container killed"
    arena.survive(fault, kill, intervals=1, lost=lost_by_one_server)


def test_run_survives_the_loss_of_all_its_containers(arena: Arena) -> None:
    def kill(gang: Gang) -> None:
        found = [arena.units.container(arena.container(pod))[0] for pod in gang.pods]
        for process in found:
            process.kill()

    arena.survive("all containers of the gang killed", kill, intervals=1)


def test_run_and_service_survive_deleted_pods(arena: Arena) -> None:
    def delete(gang: Gang) -> None:
        server = arena.servers()[0]["metadata"]["name"]
        arena.kubectl("delete", "pod", "-n", NAMESPACE, gang.pods[1], server, "--wait=false")

    arena.survive("pods of the gang and of the service deleted", delete, intervals=1)


def test_run_survives_an_out_of_memory_kill_of_a_training_process(arena: Arena) -> None:
    def exhaust_memory(gang: Gang) -> None:
        _, trainer, *_ = arena.units.container(arena.container(gang.pods[1]))
        # The kernel kills the process with the highest score first.
        Path(f"/proc/{trainer.pid}/oom_score_adj").write_text("1000")
        command = ["exec", "-n", NAMESPACE, gang.pods[1], "--", "python3", "-c", ALLOCATE_MEMORY]
        arena.kubectl(*command, check=False)
        trainer.wait(30)

    arena.survive("out of memory", exhaust_memory, intervals=1, change=slow_steps(0.2))
