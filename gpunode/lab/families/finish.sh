#!/bin/sh
# Makes a lab node that node/finish.sh has finished into one of another distribution; runs in it, when the image is built.
# /build/family holds: name, dbpath (of rpm), packages/ (what the node has from the start), key.asc and for pacman extra.db.
set -eu
build=/build/family
family=$(cat "$build/name")

# What would give the Debian below away, or let something be done by it.
remove_debian() {
    rm -rf /usr/bin/dpkg* /usr/bin/apt* /usr/sbin/dpkg* /usr/lib/apt /usr/lib/dpkg /etc/apt /etc/dpkg /var/lib/apt /var/cache/apt \
        /etc/debian_version /usr/bin/lsb_release
    find /var/lib/dpkg -mindepth 1 -maxdepth 1 ! -name alternatives -exec rm -rf {} +
    find /etc/cron.daily /etc/kernel -type f \( -name '*apt*' -o -name '*dpkg*' \) -delete 2>/dev/null || :
}

# dnf is written in Python and brings its own, as on RHEL 8: no module of Ansible would find it.
hide_python() {
    rm -f /usr/bin/python3 /usr/bin/python
    if [ -e /usr/bin/dnf-3 ]; then
        mv /usr/bin/python3.11 /usr/libexec/platform-python
        grep -Il '^#! */usr/bin/python3' /usr/bin/* | xargs sed -i '1s|^#!.*|#!/usr/libexec/platform-python|'
    fi
    rm -f /usr/bin/python3* /usr/bin/pydoc3* /usr/bin/py3*
}

# The packages of these names bring links to them: no cloud image has a compiler, nor DKMS.
hide_builders() {
    mkdir -p /usr/lib/gpunode-lab
    [ ! -e /usr/sbin/dkms ] || mv /usr/sbin/dkms /usr/lib/gpunode-lab/dkms
    mv /usr/bin/make /usr/lib/gpunode-lab/make
    ln -s "$(readlink -f /usr/bin/gcc)" /usr/lib/gpunode-lab/gcc && rm /usr/bin/gcc
    rm -f /usr/bin/cc
}

use_rpm() {
    mkdir -p /etc/rpm
    dbpath=$(cat "$build/dbpath")
    echo "%_dbpath $dbpath" >/etc/rpm/macros
    rm -rf "$dbpath" && mkdir -p "$dbpath" && rpm --initdb
    # no plugins: rpm 6 would give scripts a namespace of their own, which a container that is being built may not do
    rpm --install --nodeps --noplugins --nosignature --replacefiles "$build"/packages/*.rpm
    # the loader, Debian's, does not look into the folder of these distributions
    for library in libnvidia-ml libcuda; do
        ln -s "../../lib64/$library.so.1" "/usr/lib/x86_64-linux-gnu/$library.so.1"
    done
}

become_rhel() {
    use_rpm
    for conf in /etc/dnf/plugins/local.conf /etc/dnf/libdnf5-plugins/local.conf; do
        [ ! -e "$conf" ] || sed -i '/^\[main\]/,/^$/ s/^enabled *=.*/enabled = false/' "$conf"
    done
    [ ! -e /usr/bin/dnf5 ] || ln -sf dnf5 /usr/bin/dnf
    rm -f /etc/yum.repos.d/*
}

become_sles() {
    use_rpm
    rpm --import "$build/key.asc"
    mkdir -p /etc/products.d /etc/zypp/repos.d
    printf '%s\n' '<?xml version="1.0" encoding="UTF-8"?>' '<product schemeversion="0"><vendor>SUSE</vendor><name>SLES</name><version>15.6</version><release>0</release><arch>x86_64</arch><productline>sles</productline><register><target>sle-15-x86_64</target></register><summary>SUSE Linux Enterprise Server 15 SP6</summary></product>' >/etc/products.d/SLES.prod
    ln -s SLES.prod /etc/products.d/baseproduct
    printf '[main]\nmultiversion = provides:multiversion(kernel)\nmultiversion.kernels = latest,latest-1,running\n' >/etc/zypp/zypp.conf
}

become_arch() {
    printf '[options]\nHoldPkg = pacman\nArchitecture = auto\nSigLevel = Required DatabaseOptional\nLocalFileSigLevel = Optional\n\n[extra]\nInclude = /etc/pacman.d/mirrorlist\n' >/etc/pacman.conf
    mkdir -p /etc/pacman.d && touch /etc/pacman.d/mirrorlist
    for package in "$build"/packages/*.pkg.tar.*; do
        pacman --noconfirm --upgrade --nodeps --nodeps --overwrite '*' "$package"
    done
    install -D -m 644 "$build/extra.db" /var/lib/pacman/sync/extra.db
    pacman-key --init >/dev/null 2>&1
    pacman-key --add "$build/key.asc" >/dev/null 2>&1
    pacman-key --lsign-key "$(gpg --batch --with-colons --show-keys "$build/key.asc" | sed -n 's/^fpr:*\([0-9A-F]*\):.*/\1/p' | head -n 1)" >/dev/null 2>&1
    gpgconf --homedir /etc/pacman.d/gnupg --kill all
}

"become_$family"
hide_builders
remove_debian
hide_python
