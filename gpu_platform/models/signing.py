"""Signatures of models (OpenSSF Model Signing), with elliptic-curve keys."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from gitops.errors import GitopsError
from workload.files import describe_all

if TYPE_CHECKING:
    from model_signing import hashing

PASSWORD: Final = "MODEL_KEY_PASSWORD"  # noqa: S105  the name of a variable
"""Environment variable with the password of an encrypted private key."""

_MISMATCH: Final = "Signature mismatch"


def sign(directory: Path, key: Path, password: str | None = None) -> bytes:
    """Return the signature of all files in a directory.

    Raises:
        GitopsError: If the key cannot be used.
    """
    # Slow to import, and not needed for models without a signature.
    from model_signing import signing

    target = directory.with_suffix(".sig")
    try:
        signer = signing.Config().use_elliptic_key_signer(private_key=key, password=password)
        signer.set_hashing_config(_hashing_config()).sign(directory, target)
        return target.read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise GitopsError(f"cannot sign with {key}: {error}") from None
    finally:
        target.unlink(missing_ok=True)


def verify(directory: Path, bundle: bytes, key: Path, reference: str) -> None:
    """Verify that this key signed exactly the files in a directory.

    Raises:
        GitopsError: If the key cannot be read, the signature is not valid, or the files differ from
            the signed files.
    """
    from model_signing import verifying

    signature = directory.with_suffix(".sig")
    signature.write_bytes(bundle)
    # Suppress the warning that signatures made by old library versions lack a key hint.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
            verifier.set_hashing_config(_hashing_config()).verify(directory, signature)
        except OSError as error:
            raise GitopsError(f"{key} cannot be read: {error.strerror}") from None
        except InvalidSignature:
            raise GitopsError(f"{reference}: the signature was not made with {key}") from None
        # The library raises many types of errors for damaged bundles.
        except Exception as error:
            if str(error).startswith(_MISMATCH):
                names = ", ".join(_differing_files(directory, bundle))
                raise GitopsError(
                    f"{reference}: files differ from the signed ones: {names}"
                ) from None
            raise GitopsError(f"{reference}: the signature is not valid: {error}") from None
    # The library skips paths that the signed statement declares as ignored, so compare all files.
    if different := ", ".join(_differing_files(directory, bundle)):
        raise GitopsError(f"{reference}: files differ from the signed ones: {different}")


def _differing_files(directory: Path, bundle: bytes) -> list[str]:
    """Return the paths of changed, missing and unsigned files."""
    payload = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
    signed = {each["name"]: each["digest"] for each in payload["predicate"]["resources"]}
    actual = {name: each["sha256"] for name, each in describe_all(directory).items()}
    return sorted({name for name, _ in signed.items() ^ actual.items()})


def fingerprint(key: Path) -> str:
    """Return the digest of a public key. Raise GitopsError if the key cannot be read."""
    try:
        public: Any = serialization.load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise GitopsError(f"{key} is not a public key: {error}") from None
    text: bytes = public.public_bytes(
        encoding=serialization.Encoding.PEM, format=serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(text).hexdigest()


def _hashing_config() -> hashing.Config:
    """Return a hashing configuration that includes every file."""
    from model_signing import hashing

    config = hashing.Config().set_ignored_paths(paths=(), ignore_git_paths=False)
    return config.use_file_serialization(ignore_paths=())
