#!/bin/sh
# In the tree of a machine that boots, when all packages are there: login, network, and the boot that seals the image.
set -eu
useradd --create-home --shell /bin/bash admin
printf 'admin ALL=(ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/admin
chmod 440 /etc/sudoers.d/admin
printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n' \
    >/etc/ssh/sshd_config.d/gpunode-lab.conf
rm -f /etc/ssh/ssh_host_* /etc/apt/sources.list
: >/etc/machine-id
mkdir -p /boot/efi
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
systemctl --quiet enable systemd-networkd systemd-resolved gpunode-lab-seed gpunode-lab-seal
systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
    systemd-networkd-wait-online.service systemd-firstboot.service
kernel=$(cd /boot && printf '%s\n' vmlinuz-* | sort -V | tail -n 1)
mkdir -p /boot/grub
cat >/boot/grub/grub.cfg <<CFG
search --no-floppy --label root --set=root
linux /boot/$kernel root=LABEL=root ro console=ttyS0
initrd /boot/initrd.img-${kernel#vmlinuz-}
boot
CFG
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
