"""Errors of the notebook server before it starts."""

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "No such file or directory: 'token'; set the token"), (" ", "token is empty; set the")],
)
def test_missing_token_is_reported_in_one_line(
    content: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # JupyterLab is installed only in the image of the notebooks.
    stubs = {"jupyter_server.serverapp": "ServerApp", "traitlets.config": "Config"}
    for name, attribute in stubs.items():
        module = ModuleType(name)
        setattr(module, attribute, object)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name))
    from notebooks.__main__ import main

    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("token").write_text(content)
    monkeypatch.setattr(sys, "argv", ["x", "--home=home", "--token-file=token", "--idle-minutes=1"])
    with pytest.raises(SystemExit):
        main()
    assert expected in capsys.readouterr().err
