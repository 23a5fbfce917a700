"""A real S3 server: versitygw with a bucket in a directory."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platforms import program
from tests.stores import ACCESS
from tests.training.programs import free_port, until

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.0.14"


@pytest.fixture(scope="session")
def versitygw() -> Path:
    """The pinned server, built once in two minutes of CPU time."""
    return program(MODULE)


@pytest.fixture
def bucket(versitygw: Path, tmp_path: Path) -> Iterator[Path]:
    """The directory of a served bucket; bucket and directory have the same name."""
    port = free_port()
    found = tmp_path / "buckets" / f"state-{port}"
    found.mkdir(parents=True)
    keys = {"ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": ACCESS["AWS_SECRET_ACCESS_KEY"]}
    with (tmp_path / "versitygw.log").open("w") as log:
        server = subprocess.Popen(
            [versitygw, "--port", f"127.0.0.1:{port}", "posix", str(found.parent)],
            env={**os.environ, **keys},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until_it_listens(port)
            yield found
        finally:
            server.terminate()
            server.wait(timeout=30)


def wait_until_it_listens(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
