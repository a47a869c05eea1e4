"""Debian's own GRUB on a lab node: update-grub writes entries for the lab's kernel, by which the node boots."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpunode.lab import Lab, vendor

TRIXIE = vendor.Source("debian", "trixie", "main")
GRUB = ("grub-common", "grub2-common", "gettext-base", "libdevmapper1.02.1")
# the file system below a node is none that grub-probe knows, so it alone is a stub; /boot has a kernel of the lab
PUT_GRUB = r"""
for deb in /lab/grub/*.deb; do dpkg -x $deb /; done
cat >/usr/sbin/grub-probe <<'PROBE'
#!/bin/sh
case $* in *fs_uuid*) echo 11-22 ;; *fs*) echo ext2 ;; *device*) echo /dev/vda1 ;; *) echo ok ;; esac
PROBE
mkdir -p /boot/grub /etc/default
cat >/etc/default/grub <<'GRUB'
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=on"
GRUB_DISABLE_OS_PROBER=true
GRUB
update-grub
"""


def put_grub(lab: Lab) -> None:
    """Debian's own GRUB on a node, with boot entries for its kernel."""
    folder = Path(lab.nodes[0].hardware) / "grub"
    folder.mkdir()
    for deb in vendor.debs(TRIXIE, GRUB):
        shutil.copy(deb, folder)
    done = lab.run(lab.nodes[0], PUT_GRUB)
    assert done.returncode == 0, done.stdout + done.stderr
