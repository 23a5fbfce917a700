"""A service with two pods per replica, run by the LeaderWorkerSet controller on real nodes.

A program stands in for vLLM, which needs GPUs: it is started with the same arguments.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.platform import Platform, await_
from tests.platforms import require_real_nodes

BASE = "127.0.0.1:5000/pytorch-cpu:2.15.0"
DOCKERFILE = """ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY examples/group/ /usr/local/bin/
USER 10001:10001
"""
PROGRAM = '''#!/usr/bin/env python3
"""Serve on the leader once all workers have connected, and exit if any of them exits."""
import http.server, json, os, signal, socket, sys, threading, time

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
given = dict(text.removeprefix("--").split("=", 1) for text in sys.argv[3:] if "=" in text)
rank, nodes = int(given["node-rank"]), int(given["nnodes"])
assert ("--headless" in sys.argv) == (rank > 0), sys.argv
if rank:
    while True:
        try:
            leader = socket.create_connection((given["master-addr"], 29501), 5)
            break
        except OSError:
            time.sleep(0.2)
    leader.settimeout(None)
    leader.sendall(json.dumps([rank, os.environ["VLLM_HOST_IP"]]).encode())
    leader.recv(1)
    sys.exit("the leader has gone")

workers = []
listening = socket.create_server(("", 29501))
while len(workers) < nodes - 1:
    worker, _ = listening.accept()
    workers.append(json.loads(worker.recv(100)))
    threading.Thread(target=lambda end=worker: (end.recv(1), os._exit(1)), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"workers": workers, "gpus": os.environ["NVIDIA_VISIBLE_DEVICES"]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())


http.server.ThreadingHTTPServer(("", int(given["port"])), Handler).serve_forever()
'''
SERVICE: dict[str, Any] = {
    "runtime": "vllm",
    "image": "group",
    "source": {"claim": {"name": "checkpoints"}},
    "priority_class": "serving",
    "gpus": 1,
    "cpu": "50m",
    "memory": "128Mi",
    "server": {"nnodes": 2},
}
SELECTOR = "gpu-platform.dev/service=chat"


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The dev stack with an additional service that has two pods per replica."""
    require_real_nodes()
    directory = tmp_path_factory.mktemp("groups")
    platform = Platform.copied(directory, "real")
    (platform.checkout / "examples" / "group").mkdir()
    (platform.checkout / "examples" / "group" / "Dockerfile").write_text(DOCKERFILE)
    program = platform.checkout / "examples" / "group" / "vllm"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    with (platform.checkout / ".dockerignore").open("a") as ignored:
        ignored.write("!examples/group\n")
    try:
        platform.run(".venv/bin/python -m devcluster up --nodes real --operators=lws")
        platform.make("up")
        platform.edit(add)
        platform.shell(
            "pulumi up --yes --skip-preview --non-interactive --color never --stack dev 2>&1"
        )
        yield platform
    finally:
        platform.make("down", "PURGE=1")


def add(config: dict[str, Any]) -> None:
    build = {
        "dockerfile": "examples/group/Dockerfile",
        "base_image": BASE,
        "sources": ["examples/group"],
    }
    config["gpu-platform:images"]["workloads"]["group"] = {"build": build}
    config["gpu-platform:inference"]["services"]["chat"] = SERVICE


def pods(platform: Platform) -> dict[str, str]:
    """Return the UIDs of the service's pods by name and role."""
    found = platform.kubectl("get", "pods", "-n", platform.namespace, "-l", SELECTOR)
    return {
        item["metadata"]["labels"]["gpu-platform.dev/role"]: item["metadata"]["uid"]
        for item in found["items"]
        if "deletionTimestamp" not in item["metadata"]
    }


def available(platform: Platform) -> None:
    wait = "kubectl wait --for=condition=Available leaderworkerset/chat --timeout=600s"
    platform.shell(f"{wait} -n {platform.namespace}")


def answer(platform: Platform) -> dict[str, Any]:
    """Return the response of the service."""
    path = f"/api/v1/namespaces/{platform.namespace}/services/chat:http/proxy/"
    found: dict[str, Any] = json.loads(platform.shell(f"kubectl get --raw {path}"))
    return found


def test_pods_of_a_replica_connect_and_the_leader_responds(grouped: Platform) -> None:
    available(grouped)
    assert pods(grouped).keys() == {"serving-leader", "worker"}
    found = answer(grouped)
    ((rank, address),) = found["workers"]
    assert rank == 1
    ready = grouped.kubectl(
        "get", "endpointslices", "-n", grouped.namespace, "-l", "kubernetes.io/service-name=chat"
    )
    (endpoint,) = [each for item in ready["items"] for each in item["endpoints"]]
    assert address not in endpoint["addresses"]


def test_all_pods_of_a_replica_are_replaced_if_one_fails(grouped: Platform) -> None:
    available(grouped)
    before = pods(grouped)
    grouped.shell(f"kubectl delete pod chat-0-1 -n {grouped.namespace} --grace-period=1")

    def replaced() -> bool:
        now = pods(grouped)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    await_(replaced, "two new pods")
    available(grouped)
    assert answer(grouped)["workers"][0][0] == 1


def test_an_update_adds_a_replica_before_it_removes_one(grouped: Platform) -> None:
    changed = {**SERVICE, "server": {"nnodes": 2, "max_num_seqs": 8}}
    before = pods(grouped)
    grouped.edit(lambda config: config["gpu-platform:inference"]["services"].update(chat=changed))
    grouped.shell("pulumi up --yes --skip-preview --non-interactive --color never --stack dev 2>&1")
    unanswered = []

    def replaced() -> bool:
        try:
            answer(grouped)
        except AssertionError as error:
            unanswered.append(error)
        now = pods(grouped)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    await_(replaced, "the new replica")
    assert not unanswered
