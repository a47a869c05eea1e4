#!/bin/sh
# What `gpunode provision` does on a new node, as a script by hand: it chooses no version, checks nothing, keeps nothing
# for an undo.  Next to it: files.tar (keys, sources, preferences, modprobe.d), engines.tar (their configuration), and
# `words`, which sets gone, headers, packages, held, modules, services and engines.
# shellcheck disable=SC1091,SC2086,SC2154 # names, from `words`
set -eu
cd "$(dirname "$0")"
. ./words
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o Dpkg::Options::=--force-confold "$@"; }

rm -f $gone
tar -C / -xf files.tar
apt update
[ -z "$headers" ] || apt install --yes $headers # before what DKMS builds against them
apt install --yes $packages
[ -z "$held" ] || apt-mark -qq hold $held
update-initramfs -u
modprobe -a $modules
systemctl enable --now $services
tar -C / -xf engines.tar
nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml
systemctl restart $engines
nvidia-smi -L
