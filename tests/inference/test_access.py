"""API keys from a file that changes while the server runs."""

from pathlib import Path

import pytest

from inference.access import Access


@pytest.mark.parametrize("key", ["schlüssel-鍵", "clà", "smÅ"])
def test_key_may_contain_any_characters(key: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"search infer {key}\n", encoding="utf-8")
    access = Access(str(file))
    # The connection decodes headers as Latin-1.
    sent = key.encode().decode("latin-1")
    for headers in ((None, sent), (f"Bearer {sent}", None)):
        match = access.find(*headers)
        assert match is not None
        assert match.name == "search"


def test_missing_keys_file_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text("key\n")
    access = Access(str(file))
    for _ in range(2):
        file.unlink()
        for _ in range(3):
            access.refresh()
        assert access.find(None, "key")
        assert capsys.readouterr().out.count("api_keys_kept") == 1
        file.write_text("key\n")
        access.refresh()


def test_keys_file_that_could_not_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("key\n")
    access = Access(str(file))
    file.write_text("another-key\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", _fail_to_read)
        access.refresh()
    access.refresh()
    assert access.find(None, "another-key")


def _fail_to_read(_: Path) -> str:
    raise OSError(5, "Input/output error")


def test_a_rejected_client_learns_when_its_quota_permits_the_next_request(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("slow infer:0.1 key\nfast infer:50 other\n")
    access = Access(str(file))
    slow, fast = access.find(None, "key"), access.find(None, "other")
    assert slow is not None
    assert fast is not None
    assert slow.take()
    assert not slow.take()
    while fast.take():
        pass
    assert (slow.retry_after, fast.retry_after) == (10, 1)
