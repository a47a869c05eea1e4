#!/bin/sh
# node.sh ROOT KEEP…: process 1 of the node, in namespaces of its own: mounts what a machine has, then starts systemd.
# KEEP are paths of this machine that the node sees as they are here (device files, what is mounted in /proc).
set -eu
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p proc sys dev run tmp var/lib/containerd .machine
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty kmsg; do
    [ -e "/dev/$name" ] || continue
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for name in run tmp var/lib/containerd; do mount -t tmpfs -o mode=755 tmpfs "$name"; done
chmod 1777 tmp dev/shm
for path in "$@"; do
    [ -e "$path" ] || continue
    if [ -d "$path" ]; then mkdir -p ".$path"; else mkdir -p ".${path%/*}" && { [ -e ".$path" ] || : >".$path"; }; fi
    mount --rbind "$path" ".$path"
done
# its own view of the control groups: the group that it was put into is the root there
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    while IFS=: read -r _ names _; do
        [ -n "$names" ] || continue
        folder=sys/fs/cgroup/${names#name=}
        mkdir "$folder"
        mount -t cgroup -o "$names" cgroup "$folder" || rmdir "$folder"
    done </proc/self/cgroup
fi
ip link set lo up 2>/dev/null || :
hostname gpu-node
pivot_root . .machine
umount -l /.machine
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
