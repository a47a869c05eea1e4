#!/bin/sh
# The tree of a node, a line for each path: type, mode, owner, where a link leads, hash.  Left out are logs and caches,
# the engines' data, what the system's own tools keep as backups, and what the lab brings.
cd /
find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./tmp -o -path ./root -o -path ./home \
    -o -path ./var/log -o -path ./var/cache -o -path ./var/tmp -o -path ./var/lib/gpunode -o -path ./var/lib/apt/lists \
    -o -path ./var/lib/containerd -o -path ./var/lib/docker -o -path ./var/lib/rpm -o -path ./var/lib/dnf \
    -o -path ./var/lib/systemd -o -path ./usr/local/lib/gpunode-lab -o -path ./etc/ld.so.cache \
    -o -path './etc/*-' -o -path ./var/lib/dpkg/status-old -o -path './var/lib/dpkg/*-old' \) -prune -o \
    \( -type f -printf '%p %m %u:%g ' -exec sh -c 'sha256sum <"$1" | cut -d " " -f 1' _ {} \; \
    -o -printf '%p %y %m %u:%g %l\n' \) | sort
