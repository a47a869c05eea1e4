#!/bin/sh
# Firmware and boot loader of a lab node: the container's command, which gives the node a kernel of its own and then
# hands over to systemd.  docs/lab.md, «Inside a node», is the contract for everything under /lab.
# Nothing here may stop the boot: a node that does not come up tells nobody why.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
lab=/lab

# show FILE-OR-FOLDER PLACE: put the node's own over the one of the machine, where the machine has it
show() {
    [ -e "$2" ] && mount --bind "$1" "$2"
}

# A privileged node could otherwise write this machine's kernel settings, or restart it.
protect_machine() {
    show /dev/null /proc/sysrq-trigger
    for dir in /proc/sys/kernel /proc/sys/vm; do
        mount --bind "$dir" "$dir" && mount -o remount,bind,ro "$dir"
    done
}

# A systemd that knows cgroup v2 alone gets it where this machine has v1 beside it.  The controllers are v1's: engines see
# that, or none of their containers could have a limit.
unify_cgroups() {
    [ ! -e /sys/fs/cgroup/cgroup.controllers ] || return 0
    version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
    [ "$version" -ge 258 ] || return 0
    mkdir -p /run/cgroup1
    mount --move /sys/fs/cgroup /run/cgroup1
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for engine in containerd docker; do
        mkdir -p "/run/systemd/system/$engine.service.d"
        printf '[Service]\nBindPaths=/run/cgroup1:/sys/fs/cgroup\n' >"/run/systemd/system/$engine.service.d/cgroup1.conf"
    done
}

# The newest kernel installed boots, as with GRUB; none installed: the one that ran before.
choose_kernel() {
    newest=$(for image in /boot/vmlinuz-*; do [ -e "$image" ] && release_of "${image#/boot/vmlinuz-}"; done | sort -V | tail -n 1)
    [ -z "$newest" ] || echo "$newest" >"$lab/kernel"
    [ -s "$lab/kernel" ] || cat /proc/sys/kernel/osrelease >"$lab/kernel"
}

# release_of NAME: Arch's images are named by their package, which stands in pkgbase beside the modules
release_of() {
    found=$(grep -lsx "$1" /usr/lib/modules/*/pkgbase) && found=${found%/pkgbase} && echo "${found##*/}" && return
    echo "$1"
}

# boot_arguments: those of the entry that GRUB would boot, where the node has GRUB
boot_arguments() {
    found=$(sed -n 's/^[[:space:]]*linux[[:space:]]*[^ ]* //p' /boot/grub/grub.cfg 2>/dev/null | head -n 1)
    echo "${found:-root=/dev/vda1 ro quiet}"
}

start_kernel() {
    choose_kernel
    release=$(cat "$lab/kernel")
    cat /proc/sys/kernel/random/uuid >"$lab/boot_id"
    echo "BOOT_IMAGE=/boot/vmlinuz-$release $(boot_arguments)" >"$lab/cmdline"
    echo "Linux version $release (gpunode-lab) #1 SMP PREEMPT_DYNAMIC" >"$lab/version"
    mkdir -p "$lab/sys/bus/pci/devices" "$lab/sys/bus/pci/drivers" "$lab/sys/module" "$lab/proc/driver"
    find "$lab/sys/module" "$lab/proc/driver" "$lab/sys/bus/pci/drivers" -mindepth 1 -delete
    find "$lab/sys/bus/pci/devices" -mindepth 2 -maxdepth 2 -name driver -delete
    echo "[    0.000000] $(cat "$lab/version")" >"$lab/dmesg"
    : >"$lab/proc/modules"
    show "$lab/kernel" /proc/sys/kernel/osrelease
    show "$lab/boot_id" /proc/sys/kernel/random/boot_id
    show "$lab/cmdline" /proc/cmdline
    show "$lab/version" /proc/version
    show "$lab/proc/modules" /proc/modules
    show "$lab/proc/driver" /proc/driver
    show "$lab/sys/bus/pci" /sys/bus/pci
    show "$lab/sys/module" /sys/module
    [ ! -d "$lab/sys/firmware" ] || show "$lab/sys/firmware" /sys/firmware
}

# An emulated processor, which /proc/cpuinfo does not know: containerd asks there which variant of arm64 it is.
start_processor() {
    [ "$(uname -m)" = aarch64 ] || return 0
    {
        printf 'processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd aes pmull sha1 sha2 crc32 atomics cpuid\n'
        printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n'
    } >"$lab/cpuinfo"
    show "$lab/cpuinfo" /proc/cpuinfo
}

# Once in a node's life: what is its own (seed/: authorized keys, repositories) and its ssh host keys.
first_boot() {
    [ ! -e /etc/ssh/ssh_host_ed25519_key ] || return 0
    [ ! -d "$lab/seed" ] || cp -r --preserve=mode "$lab/seed/." /
    chown -R admin: /home/admin
    for kind in ecdsa ed25519; do
        ssh-keygen -q -t "$kind" -N '' -f "/etc/ssh/ssh_host_${kind}_key"
    done
}

# What udev would load for the hardware it finds.  A module that was not built for this kernel, or is blacklisted,
# is not loaded, and that is no error.
load_hardware_modules() {
    [ -e "$lab/autoload" ] || return 0
    while read -r module; do
        modprobe -b "$module" </dev/null
    done <"$lab/autoload"
}

protect_machine
unify_cgroups
start_kernel
start_processor
first_boot
load_hardware_modules
exec /sbin/init
