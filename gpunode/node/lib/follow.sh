#!/bin/sh
# Waits for the end of an earlier script, whose connection broke, and prints what it has printed.  Runs behind common.sh;
# gpunode_left_behind is of core/remote.py.

runs() {
  local folder
  for folder in "${TMPDIR:-/tmp}"/gpunode.??????; do
    [ "$(cat "$folder/call" 2>/dev/null)" != "$(word follows)" ] || gpunode_left_behind "$folder" || return 0
  done
  return 1
}

while runs; do nap; done
[ "$(head -n 1 "$GPUNODE_STATE/outcome" 2>/dev/null)" = "$(word follows)" ] ||
  finish failed "the connection broke, and the script that ran has ended without an outcome" "run again: what was interrupted is finished or undone first"
say note "the connection broke while this ran on the node, and was made again"
sed 1d "$GPUNODE_STATE/outcome"
