#!/bin/sh
# venv.sh PYTHON DIR: make the virtual environment DIR, unless it is there and works.
set -eu
python=$1 dir=$2

fail() {
    echo "$1" >&2
    exit 1
}

"$dir/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
command -v "$python" >/dev/null ||
    fail "no $python here; expected Python 3.11 or newer: apt-get install python3, or make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; expected 3.11 or newer: make PYTHON=/path/to/python3"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$python cannot make virtual environments: install your distribution's python3-venv"
    fi
    echo "installing python3-venv by apt-get"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-venv
fi
echo "making $dir with $("$python" --version)"
rm -rf "$dir"
"$python" -m venv "$dir"
