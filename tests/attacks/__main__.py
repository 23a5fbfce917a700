"""Attacks on the model server: `make test-attacks`, 27 minutes; `ATTACK=text` selects by name.

During each attack, well-behaved callers send requests, and health probes are sent. The program
prints one line per attack and exits with 1 unless all goals are met: callers keep 90 % of their
rate, every probe is answered within a second, memory returns to within 20 % of its previous size,
and responses have the expected status, which is never a 5xx other than 503 and 504.
`LISTENER=uvicorn` or `LISTENER=granian` runs the attacks on connections and buffers against that
HTTP server instead.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import trustme

from tests.attacks.attacks import (
    ADMIN,
    ATTACKS,
    FEW_FILES,
    LISTENER_ATTACKS,
    TLS,
    Attack,
    run,
)
from tests.attacks.client import ALLOWED_5XX
from tests.attacks.target import (
    INFER,
    Attacked,
    Callers,
    attacked,
    connect,
    infer_body,
    start_callers,
)

SECONDS: Final = 10.0
USUAL_SECONDS: Final = 3.0
SHARE: Final = 0.9
GROWTH: Final = 1.2
SETTLE_SECONDS: Final = 20.0

_spawn: Final = multiprocessing.get_context("spawn")


def rate(server: Attacked) -> float:
    """Return the responses per second that callers receive without an attack."""
    return start_callers(server, USUAL_SECONDS)().answered / USUAL_SECONDS


def measure(server: Attacked, name: str) -> list[str]:
    """Attack the server, print the results, and return the missed goals."""
    usual, memory_before = rate(server), server.memory()
    port = server.admin_port if name in ADMIN else server.port
    receiver, sender = _spawn.Pipe(duplex=False)
    attacker = _spawn.Process(target=run, args=(name, port, SECONDS + 2, sender), daemon=True)
    attacker.start()
    # Callers start two seconds after the attack and end before it.
    begin, busy = time.monotonic() + 2, server.busy()
    slowest, lost, probes, peak = 0.0, 0, 0, memory_before
    callers = None
    while not receiver.poll(0.1):
        if callers is None and time.monotonic() > begin:
            callers = start_callers(server, SECONDS)
        status, seconds = server.probe()
        probes += 1
        lost += status != 200
        slowest = max(slowest, seconds)
        peak = max(peak, server.memory())
    used = (server.busy() - busy) / (time.monotonic() - begin + 2)
    attack_error = receiver.recv()
    attacker.join()
    outcome = callers() if callers is not None else Callers()
    deadline = time.monotonic() + SETTLE_SECONDS
    while (
        memory_after := server.memory()
    ) > memory_before * GROWTH and time.monotonic() < deadline:
        time.sleep(0.5)
    # Other programs may share the machine, so the usual rate is measured before and after.
    share = outcome.answered / SECONDS / min(usual, rate(server))
    unexpected_codes = {
        code: n for code, n in outcome.codes.items() if code >= 500 and code not in ALLOWED_5XX
    }
    missed = [
        *([attack_error] if attack_error else []),
        *([f"callers: {outcome.codes}"] if share < SHARE or unexpected_codes else []),
        *([f"{lost} of {probes} probes lost"] if lost else []),
        *(["memory is not released"] if memory_after > memory_before * GROWTH else []),
    ]
    print(
        f"{'MISSED' if missed else 'ok':7}{name:43}{share:6.0%}{used:6.0%}{slowest * 1000:7.0f} ms"
        f"{memory_before >> 20:6}{peak >> 20:6}{memory_after >> 20:6} MiB  {'; '.join(missed)}",
        flush=True,
    )
    return missed


def warm_up(server: Attacked) -> None:
    """Send large requests, because workers reuse the memory of the first ones."""
    connection = connect(server.port, 60, server.tls)
    for _ in range(40):
        connection.request("POST", INFER, infer_body(samples=15, output="large"))
        connection.getresponse().read()
    rate(server)


def main() -> int:
    """Run the selected attacks and return the exit code."""
    wanted = os.environ.get("ATTACK", "")
    print(f"{'':7}{'attack':43}{'rate':>6}{'CPU':>6}{'probe':>10}{'before, peak, after':>21}")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        certificate = trustme.CA().issue_cert("127.0.0.1")
        tls = {"tls_certificate": Path(folder) / "chain", "tls_key": Path(folder) / "key"}
        certificate.cert_chain_pems[0].write_to_path(str(tls["tls_certificate"]))
        certificate.private_key_pem.write_to_path(str(tls["tls_key"]))
        servers: list[tuple[dict[str, Attack], dict[str, Any]]] = [
            (ATTACKS | ADMIN, {}),
            (TLS, tls),
            (FEW_FILES, {"files": 256}),
        ]
        if listener := os.environ.get("LISTENER"):
            servers = [({name: ATTACKS[name] for name in LISTENER_ATTACKS}, {"listener": listener})]
        for number, (attacks, settings) in enumerate(servers):
            selected = [name for name in attacks if wanted in name]
            if not selected:
                continue
            directory = Path(folder) / str(number)
            directory.mkdir()
            with attacked(directory, **settings) as server:
                warm_up(server)
                results += [measure(server, name) for name in selected]
    failed = sum(map(bool, results))
    print(f"{len(results) - failed} of {len(results)} attacks withstood")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
