#!/bin/sh
# The tree of a node: a line for each path (type, mode, owner, size, where a link leads), and one for the hash of each
# file outside of /usr, where packages put theirs, and below /usr/local.
# Left out are logs and caches, the engines' data, what the system's own tools keep as backups, and what the lab brings.
cd /
LEFT_OUT="./proc ./sys ./dev ./run ./tmp ./root ./home ./var/log ./var/cache ./var/tmp ./var/lib/gpunode
  ./var/lib/apt/lists ./var/lib/containerd ./var/lib/docker ./var/lib/rpm ./var/lib/dnf ./var/lib/systemd
  ./usr/local/lib/gpunode-lab ./etc/ld.so.cache ./etc/*- ./var/lib/dpkg/*-old"
set -f
set -- -false
for path in $LEFT_OUT; do set -- "$@" -o -path "$path"; done
set -- . -xdev \( "$@" \) -prune -o
find "$@" \( -type f -printf '%p f %m %u:%g %s\n' -o -printf '%p %y %m %u:%g %l\n' \) | sort
find "$@" -type f \( -not -path './usr/*' -o -path './usr/local/*' -o -path './usr/lib/modules/*' \) -print0 | sort -z |
  xargs -0 sha256sum | sed 's/^\([^ ]*\)  \(.*\)$/\2 \1/'
