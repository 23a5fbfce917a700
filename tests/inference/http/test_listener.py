"""The limit on connections, and the certificate."""

import hashlib
import resource
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from inference.config import InferenceConfig
from inference.http.listener import RESERVED_FILES, Certificate, allow_connections
from workload.configuration import ConfigurationError


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """The soft limit on open files, which is restored after the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = (RESERVED_FILES + 100, limits[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lower)
    yield lower[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_soft_limit_on_open_files_is_raised_for_connections(soft_limit: int) -> None:
    assert allow_connections(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft_limit
    assert allow_connections(500) == 500
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + RESERVED_FILES


def test_number_of_connections_is_limited_by_the_open_files_limit(soft_limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    assert allow_connections(hard) == hard - RESERVED_FILES


def test_half_of_a_low_open_files_limit_is_left_to_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert allow_connections(4096) == 128


def presented_certificate(context: ssl.SSLContext) -> str:
    """Return the digest of the certificate that a server with this context presents."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return hashlib.sha256(der).hexdigest()


def renew(folder: Path, authority: trustme.CA, kind: str = "ECDSA") -> str:
    """Write a new certificate and its key, and return the digest of the certificate."""
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType[kind])
    issued.private_key_pem.write_to_path(folder / "key")
    issued.cert_chain_pems[0].write_to_path(folder / "chain")
    der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
    return hashlib.sha256(der).hexdigest()


def read_certificate(folder: Path) -> Certificate:
    return Certificate(
        InferenceConfig(
            model_name="digits",
            model_path="/none",
            tls_certificate=str(folder / "chain"),
            tls_key=str(folder / "key"),
            tls_minimum="1.3",
        )
    )


@pytest.mark.parametrize("order", [["RSA", "ECDSA", "RSA"], ["ECDSA", "RSA", "ECDSA"]])
def test_renewed_certificate_may_have_a_different_key_type(
    order: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = trustme.CA()
    key = tmp_path / "key"
    issued = renew(tmp_path, authority, order[0])
    certificate = read_certificate(tmp_path)
    assert presented_certificate(certificate.context) == issued
    for kind in order[1:]:
        issued = renew(tmp_path, authority, kind)
        certificate.refresh()
        assert presented_certificate(certificate.context) == issued
        assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_3
    key.write_text("not a key")
    certificate.refresh()
    assert presented_certificate(certificate.context) == issued
    capsys.readouterr()
    key.unlink()
    for _ in range(3):
        certificate.refresh()
    assert presented_certificate(certificate.context) == issued
    assert capsys.readouterr().out.count("certificate_kept") == 1


def test_renewed_certificate_that_could_not_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = trustme.CA()
    renew(tmp_path, authority)
    certificate = read_certificate(tmp_path)
    issued = renew(tmp_path, authority)

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_cert_chain", fail)
        for _ in range(3):
            certificate.refresh()
    assert capsys.readouterr().out.count("certificate_kept") == 1
    certificate.refresh()
    assert presented_certificate(certificate.context) == issued


def test_encrypted_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    renew(tmp_path, trustme.CA())
    key = load_pem_private_key((tmp_path / "key").read_bytes(), None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase")
    )
    (tmp_path / "key").write_bytes(encrypted)
    with pytest.raises(ConfigurationError, match=r"/key is encrypted: use a key without"):
        read_certificate(tmp_path)
