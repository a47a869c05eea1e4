#!/bin/sh
# On the machine with the GPU, as root: put the parts beside this file together, and try gpunode there.
# sh run.sh [RECORD.tar.gz]; it ends within 20 minutes, and leaves nothing but the record.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
record=${1:-$here/gpunode-gpu-record.tar.gz}
[ "$(id -u)" = 0 ] || { echo "this needs root: it starts a node in namespaces" >&2; exit 5; }
command -v python3 >/dev/null || { echo "this needs python3 3.11 or newer" >&2; exit 5; }
(cd "$here" && sha256sum --check --quiet SHA256SUMS)
work=$(mktemp -d "${TMPDIR:-/var/tmp}/gpunode-gpu.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' HUP INT TERM
cat "$here"/part.* | tar -C "$work" -xzf -
# the limit of the trial itself is shorter; this one is for a program that does not end
timeout -k 15 1170 python3 "$work/trial.py" "$record"
