"""JupyterLab server for a notebook: `python -m notebooks --home=… --token-file=…`.

The server ignores the user's configuration files, so that they cannot disable the token.
"""

import argparse
import os
from pathlib import Path

from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

_PACKAGE = Path(__file__).parent


def main() -> None:
    """Run the server until it is idle or receives SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m notebooks", description="Run JupyterLab.")
    parser.add_argument("--home", type=Path, required=True, help="home directory of the user")
    parser.add_argument("--base-url", default="/", help="prefix of all URL paths")
    parser.add_argument("--port", type=int, default=8888)
    parser.add_argument("--token-file", type=Path, required=True, help="file with the token")
    parser.add_argument(
        "--idle-minutes",
        type=float,
        required=True,
        help="minutes without activity after which the notebook is suspended",
    )
    options = parser.parse_args()
    try:
        token = options.token_file.read_text().strip()
    except OSError as error:
        parser.error(f"{error}; set the token in the Secret")
    if not token:
        parser.error(f"{options.token_file} is empty; set the token in the Secret")
    options.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(options.home)
    lab = options.home / ".jupyter" / "lab"
    os.environ |= {
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(lab / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(lab / "workspaces"),
    }
    ServerApp.launch_instance(argv=[], config=_configuration(options, token))


def _configuration(options: argparse.Namespace, token: str) -> Config:
    extensions = ("notebooks.activity", "jupyter_server_terminals", "jupyterlab")
    return Config(
        ServerApp={
            "ip": "0.0.0.0",  # noqa: S104  all addresses of the pod
            "port": options.port,
            "port_retries": 0,
            "base_url": options.base_url,
            "default_url": "/lab",
            "root_dir": str(options.home),
            "open_browser": False,
            "allow_remote_access": True,
            "trust_xheaders": True,
            "jpserver_extensions": dict.fromkeys(extensions, True),
        },
        IdentityProvider={"token": token},
        FileContentsManager={"delete_to_trash": False},
        LabApp={
            "extra_labextensions_path": [str(_PACKAGE / "labextension")],
            "extension_manager": "readonly",
            "app_settings_dir": str(_PACKAGE / "settings"),
            "news_url": None,
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        },
        Idleness={"limit_seconds": options.idle_minutes * 60},
    )


if __name__ == "__main__":
    main()
