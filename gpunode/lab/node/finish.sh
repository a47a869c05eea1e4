#!/bin/sh
# Makes a plain Debian or Ubuntu container into a lab node; runs in it, once, when the image is built.
# /build holds: node/ (boot.sh, modules-load.sh), standins/ (a mirror of the node's tree), debs/,
# sources/ (of apt), purge (package names).
set -eu
export DEBIAN_FRONTEND=noninteractive
build=/build

remove_packages() {
    [ -s "$build/purge" ] || return 0
    # Patterns, because names differ between releases: take what is installed.
    xargs dpkg-query -W -f '${Package}\n' <"$build/purge" >/tmp/purge 2>/dev/null || :
    xargs -r dpkg --purge --force-depends --force-remove-essential </tmp/purge
}

# A privileged node shares this machine's devices and /sys: its udev would rename interfaces and change MAC addresses
# (the first 25 s of packets are lost), its sysctl would write this machine's settings, its binfmt would remove what this
# machine has registered.
mask_units() {
    for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udev-settle.service \
        systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-sysctl.service systemd-binfmt.service \
        proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount \
        sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount dev-hugepages.mount dev-mqueue.mount \
        sys-fs-fuse-connections.mount kmod-static-nodes.service modprobe@.service systemd-tmpfiles-setup-dev.service \
        getty.target console-getty.service systemd-logind.service systemd-firstboot.service systemd-pcrphase.service \
        systemd-remount-fs.service e2scrub_reap.service e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
        apt-daily.timer apt-daily-upgrade.timer; do
        ln -sfn /dev/null "/etc/systemd/system/$unit"
    done
}

load_modules_by_modprobe() {
    cat >/etc/systemd/system/systemd-modules-load.service <<'UNIT'
[Unit]
Description=Load Kernel Modules
DefaultDependencies=no
Before=sysinit.target shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/gpunode-lab/modules-load
[Install]
WantedBy=sysinit.target
UNIT
    systemctl enable -q systemd-modules-load.service
}

set_up_login() {
    useradd --create-home --shell /bin/bash admin
    printf 'admin ALL=(ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/admin
    chmod 440 /etc/sudoers.d/admin
    mkdir -p /etc/ssh/sshd_config.d
    printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n' >/etc/ssh/sshd_config.d/gpunode-lab.conf
    sed -i '/pam_systemd/d' /etc/pam.d/common-session # there is no logind: each login would wait for it
    rm -f /etc/ssh/ssh_host_*
    : >/etc/machine-id
}

# The journal would otherwise show this machine's kernel messages as the node's.
keep_machine_log_out() {
    mkdir -p /etc/systemd/journald.conf.d
    printf '[Journal]\nReadKMsg=no\nStorage=volatile\n' >/etc/systemd/journald.conf.d/gpunode-lab.conf
}

use_archive() {
    rm -f /etc/apt/sources.list
    cp "$build"/sources/* /etc/apt/sources.list.d/
    cp "$build/apt.conf" /etc/apt/apt.conf.d/90gpunode-lab
}

install_standins() {
    [ -d "$build/standins" ] || return 0
    (cd "$build/standins" && find . -type f -o -type l) | while read -r file; do
        path=${file#.}
        dpkg-divert --quiet --local --rename --divert "$path.real" --add "$path" 2>/dev/null
        mkdir -p "${path%/*}"
        cp -a "$build/standins/$file" "$path"
        chown -h root: "$path"
    done
}

# An emulated node: programs that this machine's own architecture runs, with the libraries they need, from its tree.
take_native() {
    [ -e "$build/native" ] || return 0
    loader=/usr/lib64/ld-linux-x86-64.so.2
    libraries=/usr/lib/x86_64-linux-gnu
    mkdir -p "$libraries" "${loader%/*}"
    [ -e /lib64 ] || ln -s usr/lib64 /lib64
    cp -L "/native$libraries/${loader##*/}" "$loader"
    while read -r program; do
        [ -e "$program" ] || continue
        dpkg-divert --quiet --local --rename --divert "$program.real" --add "$program"
        cp "/native$program" "$program"
        "$loader" --library-path "/native$libraries" --list "/native$program" |
            sed -n 's,.* => \(/native[^ ]*\) .*,\1,p' | while read -r library; do cp -L "$library" "$libraries/"; done
    done <"$build/native"
    # A unit's credentials need a mount namespace of their own, which the emulator cannot make.
    for unit in systemd-sysusers systemd-tmpfiles-setup; do
        mkdir -p "/etc/systemd/system/$unit.service.d"
        printf '[Service]\nLoadCredential=\n' >"/etc/systemd/system/$unit.service.d/gpunode-lab.conf"
    done
}

remove_packages
take_native
mask_units
load_modules_by_modprobe
set_up_login
keep_machine_log_out
use_archive
install -D -m 755 "$build/node/boot.sh" /usr/local/lib/gpunode-lab/boot
install -D -m 755 "$build/node/modules-load.sh" /usr/local/lib/gpunode-lab/modules-load
install_standins
set -- "$build"/debs/*.deb
[ ! -e "$1" ] || dpkg --install "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /tmp/purge
