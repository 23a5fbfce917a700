#!/usr/bin/env bash
# environment.sh PYTHON FOLDER: creates a virtual environment in FOLDER and installs uv in it. It
# prints only to standard error, because `eval "$(make env)"` evaluates the standard output.
set -euo pipefail
python=$1 folder=$2

fail() {
  echo "error: $*" >&2
  exit 1
}

command -v "$python" >/dev/null || fail "$python is not on PATH: install Python 3.11 or newer, or set PYTHON=…"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old: install Python 3.11 or newer, or set PYTHON=…"

# Two targets of `make` may need the environment at the same time. macOS has no flock.
if command -v flock >/dev/null; then
  exec 9<"$0"
  flock --nonblock 9 || {
    echo "waiting for another process that is setting up $folder" >&2
    flock 9
  }
fi

# Use the interpreter's real path: the environment's directory is first on PATH, and pyenv would
# search there each time. An environment whose first start was interrupted has no pip.
python=$("$python" -c 'import sys; print(sys._base_executable)')

# Debian has a separate package for venv.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Debian package: python3-venv" >&2
    { apt-get update && apt-get install --yes --no-install-recommends python3-venv; } >/dev/null
  else
    fail "Python's venv is missing; run: sudo apt-get install python3-venv"
  fi
fi

# Keep a working environment, because processes may be using it.
if ! "$folder/bin/python" -c 'import sys' 2>/dev/null; then
  echo "creating the Python environment $folder" >&2
  rm -rf "$folder"
fi
# Unpacking uv takes most of the time, so later environments copy the program.
pinned=$(dirname "$0")/uv.txt
kept=${GPU_PLATFORM_CACHE:-${XDG_CACHE_HOME:-${HOME:-~}/.cache}/gpu-platform}/uv-$(sha256sum "$pinned" | cut -c1-12)
kept=${kept/#\~\//${HOME:-~}/} # as in devcluster/paths.py
if "$kept" --version >/dev/null 2>&1; then # fails if it is damaged or built for another architecture
  [ -d "$folder" ] || "$python" -m venv --without-pip "$folder"
  cp "$kept" "$folder/bin/.uv"
  mv "$folder/bin/.uv" "$folder/bin/uv" # processes may be executing the old one
  exit
fi
install=(install --quiet --disable-pip-version-check --require-hashes)
install+=(--requirement "$pinned")
# The host's pip only unpacks uv's executable: its Python modules are not needed. This takes half the
# time of an installation with a pip in the environment. Pulumi lists packages with pip, which uv
# installs later.
if "$python" -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 23)' 2>/dev/null; then
  [ -d "$folder" ] || "$python" -m venv --without-pip "$folder"
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  "$python" -m pip "${install[@]}" --root-user-action ignore --target "$unpacked"
  [ ! -d "$unpacked/bin" ] || mv "$unpacked"/bin/* "$folder/bin/"
else
  [ -d "$folder" ] || "$python" -m venv "$folder"
  "$folder/bin/python" -m pip "${install[@]}"
fi
# The cache directory may be read-only.
if [ -x "$folder/bin/uv" ] && mkdir -p "$(dirname "$kept")" 2>/dev/null &&
  temporary=$(mktemp "$kept.XXXXXX" 2>/dev/null); then
  cp "$folder/bin/uv" "$temporary"
  chmod 755 "$temporary"
  mv "$temporary" "$kept"
fi
