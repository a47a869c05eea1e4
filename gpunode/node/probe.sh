#!/bin/sh
# What this machine says of itself, for gpunode: raw text in named sections.  Changes nothing, writes no file.
#
# Runs under dash, busybox ash and bash, as root or not.  Each section is the function `probe_NAME`; its content lines
# begin with "| ", its remarks (no such tool, no permission, no answer, cut off) with "! ".  docs/probe.md describes
# every section.  $GPUNODE_IN/sections, where it exists, names the sections to print, $GPUNODE_IN/paths further files.

SECTIONS="system os_release secure_boot kernels dkms pci lspci driver nvidia_smi nvlink topology clients xids
gpu_containers cuda toolkit cdi tools units runtimes containers kubernetes sysctl packages holds locks disk journal first_boot sharing files"
UNITS="containerd.service docker.service docker.socket crio.service podman.socket kubelet.service
nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service nvidia-dcgm.service
nvidia-cdi-refresh.service nvidia-cdi-refresh.path k3s.service k3s-agent.service rke2-server.service
rke2-agent.service k0scontroller.service k0sworker.service snap.microk8s.daemon-kubelite.service
snap.microk8s.daemon-containerd.service snap.docker.dockerd.service cri-docker.service
gpunode-firstboot.service gpunode-mig.service gpunode-mps.service gpunode-metrics.timer nvidia-mig-manager.service
unattended-upgrades.service apt-daily-upgrade.timer dnf-automatic.timer display-manager.service"
TOOLS="python3 sudo systemctl timeout flock base64 sha256sum lspci modinfo modprobe dkms gcc make mokutil apt-get dnf
dnf5 yum zypper rpm pacman snap dracut update-initramfs mkinitcpio nvidia-smi nvidia-modprobe nvidia-persistenced
nv-fabricmanager nvidia-ctk nvidia-container-cli nvidia-container-runtime nvidia-uninstall nvcc dcgmi containerd ctr
crictl nerdctl runc crun docker dockerd crio podman kubelet kubectl kubeadm k3s rke2 k0s microk8s helm curl wget gpg
busybox restorecon ubuntu-drivers nvidia-cuda-mps-control nvidia-mig-parted"
FILE_MAX=1048576 # bytes of a file that are sent
TEXT_MAX=262144  # bytes of a command's output that are sent

LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib
export LC_ALL PATH
tab=$(printf '\t')
newline='
'

# ---------------------------------------------------------------- words the sections are written in

line() { printf '| %s\n' "$*"; }
remark() { printf '! %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }
booted_systemd() { [ -d /run/systemd/system ]; }

# first FILE: its first line, without a fork, in $REPLY
first() {
	REPLY=
	[ -r "$1" ] && IFS= read -r REPLY <"$1" 2>/dev/null
	[ -n "$REPLY" ]
}

# quote: standard input as content lines; says when it cuts.  One process without children: see ask.
quote() {
	left=$TEXT_MAX
	while IFS= read -r text || [ -n "$text" ]; do
		left=$((left - ${#text} - 1))
		if [ "$left" -lt 0 ]; then
			remark "cut off at $TEXT_MAX bytes"
			break
		fi
		line "$text"
	done
}

# guard SECONDS PID: in the background, kill PID unless the guard is ended before
guard() {
	(
		nap=
		trap 'kill "$nap"; exit' TERM
		sleep "$1" &
		nap=$!
		wait "$nap"
		kill -9 "$2"
	) >/dev/null 2>&1 &
}

# within SECONDS COMMAND…: runs it, and kills it when it takes longer; exit status 124 or 137 then
within() {
	if [ "$coreutils_timeout" ]; then
		timeout -k 1 "$@"
		return
	fi
	seconds=$1
	shift
	"$@" &
	child=$!
	guard "$seconds" "$child"
	watch=$!
	wait "$child" 2>/dev/null
	status=$?
	kill "$watch" 2>/dev/null
	return "$status"
}
coreutils_timeout=
timeout -k 1 1 true >/dev/null 2>&1 && coreutils_timeout=yes

# ask SECONDS COMMAND…: what it prints, quoted, and a remark unless it ends well.  A process in uninterruptible sleep (a
# GPU fell off the bus) outlives even SIGKILL: then the reader of its pipe is ended, nobody holds the probe's own output
# open, and the probe goes on.
ask() {
	name="$2 ${3:-}"
	patience=$(($1 + 2))
	{
		within "$@" </dev/null
		status=$?
		case $status in
		0) ;;
		124 | 137) printf '\nexit: no answer within %s s\n' "$1" ;;
		*) printf '\nexit: %s\n' "$status" ;;
		esac
	} 2>&1 | quote &
	reader=$!
	guard "$patience" "$reader"
	watch=$!
	wait "$reader" 2>/dev/null || remark "$name did not answer, and cannot be ended"
	kill "$watch" 2>/dev/null
	wait "$watch" 2>/dev/null
}

# ---------------------------------------------------------------- machine

probe_system() {
	# shellcheck disable=SC2046 # three words: node name, release, machine
	set -- $(uname -n -r -m)
	line "hostname ${1:-}"
	line "kernel ${2:-}"
	line "machine ${3:-}"
	first /proc/sys/kernel/random/boot_id && line "boot_id $REPLY"
	if booted_systemd; then line "init systemd"; else first /proc/1/comm && line "init $REPLY"; fi
	if have systemd-detect-virt; then
		line "virtualization $(within 3 systemd-detect-virt 2>/dev/null)"
	else
		remark "no systemd-detect-virt"
	fi
	for marker in /.dockerenv /run/.containerenv /etc/wsl.conf /run/ostree-booted /sys/fs/cgroup/cgroup.controllers; do
		[ -e "$marker" ] && line "exists $marker"
	done
	first /proc/sys/kernel/osrelease && line "osrelease $REPLY"
	if [ -r /proc/device-tree/compatible ]; then
		line "compatible $(tr '\0' ' ' </proc/device-tree/compatible)"
		line "model $(tr -d '\0' </proc/device-tree/model 2>/dev/null)"
	fi
	uid=$(id -u)
	line "uid $uid"
	line "user $(id -un 2>/dev/null || echo "$uid")"
	line "groups $(id -Gn 2>/dev/null)"
	[ "$uid" = 0 ] || remark "not root: what only root may read is missing"
}

probe_os_release() {
	for file in /etc/os-release /usr/lib/os-release; do
		[ -r "$file" ] && quote <"$file" && return
	done
	remark "no os-release"
}

probe_secure_boot() {
	if [ ! -d /sys/firmware/efi ]; then
		line "efi no"
		return
	fi
	line "efi yes"
	for file in /sys/firmware/efi/efivars/SecureBoot-*; do
		# 4 bytes of attributes, then the value (UEFI specification, 3.3)
		[ -r "$file" ] && line "secure_boot $(od -An -tu1 -j4 -N1 "$file" 2>/dev/null)" && return
	done
	if have mokutil; then ask 3 mokutil --sb-state; else remark "no readable SecureBoot variable and no mokutil"; fi
}

# ---------------------------------------------------------------- kernels and their modules

probe_kernels() {
	modules=
	for folder in /lib/modules/*/; do
		[ -d "$folder" ] || continue
		folder=${folder%/}
		release=${folder##*/}
		image=no headers=no
		for file in "/boot/vmlinuz-$release" "$folder/vmlinuz" "/boot/vmlinux-$release" "/boot/Image-$release"; do
			[ -e "$file" ] && image=yes
		done
		[ -e "$folder/build/." ] && headers=yes
		line "kernel $release image=$image headers=$headers"
		nvidia_modules "$folder"
	done
	for file in /boot/vmlinuz-*; do
		release=${file#/boot/vmlinuz-}
		grep -qsx "$release" /lib/modules/*/pkgbase && continue # Arch names them by package: the folder has the image too
		[ -e "$file" ] && [ ! -d "/lib/modules/$release" ] && line "kernel $release image=yes headers=no"
	done
	[ "$modules" ] || return 0
	# shellcheck disable=SC2086 # paths below /lib/modules have no spaces
	have modinfo && within 5 modinfo $modules 2>/dev/null </dev/null |
		sed -n 's/^\(filename\|version\|license\): */| module \1 /p'
	for file in $modules; do
		case $file in
		*.ko) module_strings "$file" ;;
		*) have modinfo || remark "$file: compressed, and no modinfo" ;;
		esac
	done
}

# nvidia_modules FOLDER: adds the NVIDIA kernel modules below /lib/modules/RELEASE to $modules.  Debian calls it
# nvidia-current.ko, Ubuntu's prebuilt ones lie in kernel/nvidia-NNN, RHEL's in extra or weak-updates, Arch's in
# extramodules.
nvidia_modules() {
	for file in "$1"/updates/dkms/nvidia*.ko* "$1"/updates/nvidia*.ko* "$1"/updates/*/nvidia.ko* "$1"/dkms/nvidia*.ko* \
		"$1"/kernel/drivers/video/nvidia*.ko* "$1"/kernel/drivers/video/nvidia*/nvidia*.ko* "$1"/kernel/nvidia-*/nvidia*.ko* \
		"$1"/extra/nvidia*.ko* "$1"/extra/nvidia*/nvidia*.ko* "$1"/extra/drivers/video/nvidia*/nvidia*.ko* \
		"$1"/weak-updates/nvidia*.ko* "$1"/weak-updates/nvidia*/nvidia*.ko* "$1"/extramodules/nvidia*.ko* "$1"/misc/nvidia*.ko*; do
		case ${file##*/} in
		*-modeset.ko* | *-drm.ko* | *-uvm.ko* | *-peermem.ko* | *-fs.ko* | nvidia-wmi-* | nvidiafb*) continue ;;
		esac
		[ -e "$file" ] && modules="$modules $file"
	done
}

# module_strings FILE: version and licence out of the bytes of an uncompressed module that modinfo could not read
module_strings() {
	have modinfo && within 3 modinfo "$1" >/dev/null 2>&1 && return
	line "module filename $1"
	within 5 tr '\0' '\n' <"$1" | sed -n 's/^\(version\|license\)=/| module \1 /p' | head -n 4
}

probe_dkms() {
	if have dkms; then ask 10 dkms status; else remark "no dkms"; fi
}

# ---------------------------------------------------------------- devices

probe_pci() {
	if [ ! -d /sys/bus/pci/devices ]; then
		remark "no /sys/bus/pci"
		return
	fi
	for device in /sys/bus/pci/devices/*; do
		first "$device/class" || continue
		class=${REPLY#0x}
		first "$device/vendor" || continue
		case $REPLY:$class in
		0x10de:03* | 0x10de:0680*) pci_line "$device" ;;
		*:0207*) pci_fabric "$device" ;;
		esac
	done
}

pci_line() {
	first "$1/device" && id=10de:${REPLY#0x}
	subsystem=- driver=- virtual=no
	first "$1/subsystem_vendor" && subsystem=${REPLY#0x} && first "$1/subsystem_device" && subsystem=$subsystem:${REPLY#0x}
	[ -e "$1/driver" ] && driver=$(cd -P "$1/driver" 2>/dev/null && echo "${PWD##*/}")
	[ -L "$1/physfn" ] && virtual=yes
	line "${1##*/} $id ${class%??} subsystem=$subsystem driver=${driver:--} vf=$virtual"
}

# pci_fabric DEVICE: HGX B200 and later show their NVLink switches as InfiniBand functions with SW_MNG in the VPD
pci_fabric() {
	[ -e "$1/vpd" ] || return
	if [ ! -r "$1/vpd" ]; then
		remark "${1##*/}: vpd not readable"
		return
	fi
	case $(within 3 head -c 4096 "$1/vpd" 2>/dev/null | tr -cd 'A-Za-z0-9_') in
	*SW_MNG*) line "${1##*/} SW_MNG" ;;
	esac
}

probe_lspci() {
	if have lspci; then ask 5 lspci -D -nn -d 10de:; else remark "no lspci"; fi
}

probe_driver() {
	if [ -r /proc/driver/nvidia/version ]; then
		sed 's/^/| proc /' /proc/driver/nvidia/version
	fi
	[ ! -r /proc/driver/nvidia/params ] || sed -n 's/^[A-Za-z]*: ./| parameter &/p' /proc/driver/nvidia/params
	for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem nvidia_fs nouveau nova_core overlay br_netfilter; do
		[ -d "/sys/module/$module" ] || continue
		first "/sys/module/$module/version"
		line "module $module $REPLY"
	done
	# built into the kernel they have no folder in /sys/module, and show here
	[ -d /sys/module/overlay ] || case $(cat /proc/filesystems 2>/dev/null) in *"${tab}overlay"*) line "module overlay" ;; esac
	[ -d /sys/module/br_netfilter ] || [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || line "module br_netfilter"
	for file in /usr/lib/*-linux-gnu*/libnvidia-ml.so.*.* /usr/lib/*-linux-gnu*/nvidia*/libnvidia-ml.so.*.* \
		/usr/lib/*-linux-gnu*/nvidia/*/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.* /usr/lib64/*/libnvidia-ml.so.*.* \
		/usr/lib/libnvidia-ml.so.*.* /usr/lib/wsl/drivers/*/libnvidia-ml.so.*.*; do
		[ -e "$file" ] && line "library $file"
	done
	for folder in /lib/firmware/nvidia/*/; do # nouveau's are called by the chip: ga102
		folder=${folder%/}
		case ${folder##*/} in [0-9]*.[0-9]*) line "firmware ${folder##*/}" ;; esac
	done
	# nvidia-installer's own record: its first line is the version
	if first /var/lib/nvidia/log; then
		line "runfile $REPLY"
	elif have nvidia-uninstall; then
		line "runfile unknown"
	fi
}

probe_nvidia_smi() {
	if ! have nvidia-smi; then
		remark "no nvidia-smi"
		return
	fi
	fields=index,uuid,name,pci.bus_id,driver_version,memory.total,mig.mode.current,mig.mode.pending,persistence_mode
	fields=$fields,ecc.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending,remapped_rows.pending
	fields=$fields,remapped_rows.failure,fabric.state,compute_cap
	answer=
	# an old nvidia-smi names the first field that it does not know: ask again without it
	while [ "$fields" ]; do
		answer=$(ask 6 nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits)
		case $answer in *'is not a valid field to query'*) ;; *) break ;; esac
		unknown=${answer#*\"}
		unknown=${unknown%%\"*}
		case ,$fields, in *",$unknown,"*) ;; *) break ;; esac
		remark "nvidia-smi does not know $unknown"
		without=,$fields,
		without=${without%%,"$unknown",*},${without#*,"$unknown",}
		without=${without#,}
		fields=${without%,}
	done
	line "fields $fields"
	printf '%s\n' "$answer"
}

probe_nvlink() {
	# a hung driver has cost its time above; links join at least two GPUs
	case $answer in *"$newline| 1, "*) ask 5 nvidia-smi nvlink --status ;; esac
}

probe_topology() {
	case $answer in *"$newline| 1, "*) ask 5 nvidia-smi topo -m ;; esac
}

probe_clients() {
	for node in /dev/nvidia* /dev/dri/renderD*; do [ -e "$node" ] && break; done
	[ -e "$node" ] || return 0
	[ "$(id -u)" = 0 ] || remark "not root: only own processes are seen"
	# shellcheck disable=SC2012 # one ls for all: a readlink for each open file would take seconds
	within 5 ls -l /proc/[0-9]*/fd 2>/dev/null |
		sed -n -e '/^\/proc/h' -e '/-> \/dev\/nvidia/{' -e g -e 's/^\/proc\/\([0-9]*\).*/\1/p' -e '}' | uniq | head -n 100 |
		while read -r pid; do
			first "/proc/$pid/comm" && line "$pid $REPLY"
		done
}

probe_xids() {
	[ -d /proc/driver/nvidia ] || return 0
	if kernel_log=$(within 3 dmesg 2>/dev/null | grep 'NVRM: Xid' | tail -n 50; within 3 dmesg >/dev/null 2>&1); then
		printf '%s\n' "$kernel_log" | quote
	elif have journalctl; then
		within 5 journalctl -k -b --no-pager -o short 2>/dev/null | grep 'NVRM: Xid' | tail -n 50 | quote
	else
		remark "dmesg is not permitted, and no journalctl"
	fi
}

# by devices.sh, which is sent before this
probe_gpu_containers() {
	if ! have gpu_containers; then
		remark "sent without devices.sh"
		return
	fi
	nvidia_nodes | while read -r number path; do
		if [ -e "/dev/char/$number" ]; then line "linked $number $path"; else line "unlinked $number $path"; fi
	done
	if [ "$(id -u)" = 0 ]; then
		gpu_containers | sed 's/^/| container /'
	elif [ -e /dev/nvidiactl ]; then
		remark "not root: containers are not seen"
	fi
}

# ---------------------------------------------------------------- CUDA and the container toolkit

probe_cuda() {
	for folder in /usr/local/cuda-* /opt/cuda; do
		[ -d "$folder" ] || continue
		[ -e "$folder/bin/nvcc" ] && line "nvcc $folder"
		line "folder $folder"
		[ -r "$folder/version.json" ] && sed -n 's/.*"version" *: *"\([^"]*\)".*/| version \1/p' "$folder/version.json" | head -n 1
	done
	exists /usr/local/cuda && line "default $(readlink -f /usr/local/cuda)"
	return 0
}

probe_toolkit() {
	for tool in nvidia-ctk nvidia-container-runtime nvidia-container-toolkit /usr/local/nvidia/toolkit/nvidia-ctk; do
		have "$tool" && ask 3 "$tool" --version && return
	done
	return 0
}

# probe_cdi: what a CDI specification has to fit: the driver's GPUs by the N of /dev/nvidiaN, how many MIG devices each is
# cut into, and which paths in the specifications are not here (they hold no commas and braces; JSON has many a line)
probe_cdi() {
	for file in /proc/driver/nvidia/gpus/*/information; do
		[ -r "$file" ] && sed -n -e '/^GPU UUID:/h' -e '/^Device Minor:/{' -e G \
			-e 's/^[^0-9]*\([0-9][0-9]*\).*\n[^:]*:[[:space:]]*\(.*\)/| gpu \1 \2/p' -e '}' "$file"
	done
	for folder in /proc/driver/nvidia/capabilities/gpu*; do
		set -- "$folder"/mig/gi*/ci*
		[ -e "$1" ] && line "mig ${folder##*/gpu} $#"
	done
	for file in /etc/cdi/*.yaml /etc/cdi/*.json /run/cdi/*.yaml /run/cdi/*.json; do
		[ -r "$file" ] && sed 'y/,{}/\n\n\n/' "$file" |
			sed -n 's/^[ -]*"\{0,1\}\(hostPath\|path\)"\{0,1\} *: *"\{0,1\}\(\/[^"]*\).*/\2/p' | sort -u |
			while read -r path; do exists "$path" || line "missing $path"; done
	done
	return 0
}

probe_tools() {
	for tool in $TOOLS; do
		have "$tool" && printf '| %s ' "$tool" && command -v "$tool"
	done
	return 0
}

# ---------------------------------------------------------------- services and engines

probe_units() {
	if ! booted_systemd; then
		remark "systemd is not running"
		daemons
		return
	fi
	# shellcheck disable=SC2086 # a list of names
	units=$(ask 5 systemctl show -p Id,LoadState,ActiveState,UnitFileState,MainPID,ExecStart,FragmentPath,CanReload $UNITS)
	printf '%s\n' "$units"
	main_pids=$(printf '%s\n' "$units" | sed -n 's/^| MainPID=\([1-9][0-9]*\)$/\1/p')
	for pid in $main_pids; do process "$pid"; done
}

# daemons: without systemd the engines are found by their names, those in containers of their own left out
daemons() {
	for folder in /proc/[0-9]*; do
		first "$folder/comm" || continue
		case $REPLY in
		containerd | dockerd | crio | kubelet | k3s* | rke2* | k0s*) ;;
		*) continue ;;
		esac
		while read -r key one more; do
			[ "$key" = NSpid: ] && [ -z "$more" ] && [ "$one" ] && process "${folder#/proc/}"
		done <"$folder/status"
	done 2>/dev/null
}

# process PID: its arguments, separated by tabs
process() {
	[ -r "/proc/$1/cmdline" ] && line "process $1$tab$(tr '\0\n' '\t ' <"/proc/$1/cmdline" | head -c 4096)"
}

probe_runtimes() {
	have containerd && line "binary containerd $(command -v containerd)" && ask 3 containerd --version
	for file in "$(command -v dockerd)" /snap/docker/current/bin/dockerd; do
		[ -x "$file" ] && line "binary docker $file" && ask 3 "$file" --version && break
	done
	have crio && line "binary crio $(command -v crio)" && ask 3 crio --version
	have podman && line "binary podman $(command -v podman)" && ask 3 podman --version
	for socket in /run/containerd/containerd.sock /run/docker.sock /var/run/docker.sock /run/crio/crio.sock \
		/run/podman/podman.sock /run/cri-dockerd.sock /run/k3s/containerd/containerd.sock /run/k0s/containerd.sock \
		/var/snap/microk8s/common/run/containerd.sock; do
		[ -S "$socket" ] && line "socket $socket"
	done
	bundled_containerd
	have containerd || return 0
	containerd_root
	echo "#: containerd_dump"
	# without a file the daemon goes by its defaults, while `config dump` fails
	show=dump
	[ -e "$containerd_config" ] || show=default
	if dump=$(within 5 containerd --config "$containerd_config" config "$show" 2>/dev/null </dev/null); then
		printf '%s\n' "$dump" | quote
	else
		echo "#: containerd_error"
		ask 5 containerd --config "$containerd_config" config "$show" | grep -v '^| *$' | tail -n 5
	fi
}

# the containerd that a Kubernetes distribution brings
bundled_containerd() {
	rancher_folder k3s
	set -- k3s "$folder/data/current/bin/containerd"
	rancher_folder rke2
	set -- "$@" rke2 "$folder/bin/containerd" k0s /var/lib/k0s/bin/containerd microk8s /snap/microk8s/current/bin/containerd
	while [ $# -gt 0 ]; do
		[ -x "$2" ] && line "bundled $1 $2" && ask 3 "$2" --version
		shift 2
	done
}

# rancher_folder KIND: sets $folder to the data folder of k3s or rke2: what its unit or its config files say
rancher_folder() {
	[ "${units+set}" ] || units=$(probe_units)
	unit_flags "$1.service" "$1"
	folder=$(printf '%s\n' "$flags" | sed -n 's/.* \(--data-dir\|-d\)[= ]\([^ ]*\).*/\2/p')
	[ "$folder" ] || folder=$(sed -n "s/^ *[\"']\{0,1\}data-dir[\"']\{0,1\} *: *[\"']\{0,1\}\([^\"' #]*\).*/\1/p" \
		"/etc/rancher/$1/config.yaml" "/etc/rancher/$1/config.yaml.d"/*.yaml 2>/dev/null | tail -n 1)
	folder=${folder:-/var/lib/rancher/$1}
}

# containerd_root: sets $containerd_config, the root file: what --config of the running daemon or its unit says
containerd_root() {
	containerd_config=/etc/containerd/config.toml
	[ "${units+set}" ] || units=$(probe_units)
	unit_flags containerd.service containerd
	set -f
	# shellcheck disable=SC2086 # words of a command line
	set -- $flags
	set +f
	while [ $# -gt 0 ]; do
		case $1 in
		--config=* | -c=*) containerd_config=${1#*=} ;;
		--config | -c) containerd_config=${2:-} ;;
		esac
		shift
	done
	line "config containerd $containerd_config"
}

# unit_flags UNIT NAME: sets $flags to the command line of the unit, or of the process NAME where there is no unit
unit_flags() {
	flags=$(printf '%s\n' "$units" | sed -n "/^| ExecStart=.*argv\[\]=[^ ;]*\/$2 /s/.*argv\[\]=\([^;]*\).*/\1/p" | head -n 1)
	[ "$flags" ] && return
	flags=$(printf '%s\n' "$units" | sed -n "s/^| process [0-9]*$tab\([^$tab]*\/\)\{0,1\}$2$tab/$2 /p" | head -n 1)
}

# ---------------------------------------------------------------- what runs in the engines

NAMED=20 # containers and pods that are named; all are counted

# names ENGINE NAME…: how many there are, and the first ones
names() {
	engine=$1
	shift
	line "$engine count $#"
	told=0
	for name in "$@"; do
		told=$((told + 1))
		[ "$told" -gt "$NAMED" ] || line "$engine name $name"
	done
}

probe_containers() {
	[ "${units+set}" ] || units=$(probe_units)
	dockers
	for socket in /run/containerd/containerd.sock /run/crio/crio.sock /run/k3s/containerd/containerd.sock \
		/run/k0s/containerd.sock /var/snap/microk8s/common/run/containerd.sock; do
		[ -S "$socket" ] && pods "$socket"
	done
	[ ! -d /run/libpod ] || podmans
}

# podmans: by the processes that watch its containers, as `podman ps` writes files; those of CRI-O are called k8s_…
podmans() {
	set --
	for folder in /proc/[0-9]*; do
		first "$folder/comm" && [ "$REPLY" = conmon ] || continue
		name=$(tr '\0' '\t' <"$folder/cmdline" | sed -n "s/.*${tab}-n$tab\([^$tab]*\).*/\1/p")
		case $name in '' | k8s_*) ;; *) set -- "$@" "$name" ;; esac
	done 2>/dev/null
	names podman "$@"
}

# dockers: the running dockerd is asked; a connection to its socket would start one that does not run
dockers() {
	for socket in /run/user/*/docker.sock; do
		[ -S "$socket" ] || continue
		user=${socket#/run/user/}
		line "docker rootless ${user%%/*}"
	done
	pid=$(printf '%s\n' "$units" | docker_pid)
	[ "$pid" ] || return 0
	started "$pid"
	for tool in nvidia-container-runtime-hook nvidia-cdi-hook; do # dockerd looks for them when it starts
		have "$tool" && line "docker hook $(stat -L -c %Z "$(command -v "$tool")")"
	done
	if have docker; then
		# shellcheck disable=SC2086 # a list of names
		found=$(dockerd_says ps --format '{{.Names}}') && names docker $found &&
			line "docker live_restore $(dockerd_says info --format '{{.LiveRestoreEnabled}}')"
	elif have curl; then
		# shellcheck disable=SC2046 # a list of names
		found=$(within 5 curl -fsS --unix-socket /var/run/docker.sock http://docker/containers/json 2>/dev/null) &&
			names docker $(printf '%s' "$found" | grep -o '"Names":\["/[^"/]*"' | sed 's/.*\/\(.*\)"/\1/')
	else
		remark "no docker and no curl to ask dockerd with"
	fi
}

# docker_pid: of dockerd, out of the units' properties, or of the processes where there is no systemd
docker_pid() {
	main=0 id=
	while IFS= read -r text; do
		case $text in
		'| MainPID='*) main=${text#*=} ;;
		'| Id='*) id=${text#*=} ;;
		"| process "*"/dockerd$tab"* | "| process "*"${tab}dockerd$tab"*)
			text=${text#"| process "}
			echo "${text%%"$tab"*}"
			return
			;;
		'| ')
			case $id:$main in docker.service:[1-9]* | snap.docker.dockerd.service:[1-9]*) echo "$main" && return ;; esac
			main=0
			;;
		esac
	done
}

dockerd_says() { within 5 docker -H unix:///var/run/docker.sock "$@" 2>/dev/null </dev/null; }

# started PID: when the process of dockerd started, in seconds since 1970: ticks of 1/100 s since the kernel started
started() {
	first "/proc/$1/stat" || return 0
	# shellcheck disable=SC2086 # numbers
	set -- ${REPLY##*) }
	while read -r key boot; do
		[ "$key" = btime ] && [ $# -ge 20 ] && shift 19 && line "docker started $((boot + $1 / 100))" && break
	done </proc/stat
}

# pods SOCKET: NAMESPACE/NAME of the pods that an engine for Kubernetes runs; without crictl the number of its tasks
pods() {
	case $1 in
	*/crio/*) kind=crio ;;
	*/k3s/*) kind=k3s ;;
	*/k0s/*) kind=k0s ;;
	*/microk8s/*) kind=microk8s ;;
	*) kind=containerd ;;
	esac
	if have crictl; then
		# columns from the right: runtime (of late), attempt, namespace, name; the age before them is of several words
		pod='^.* \([^ ][^ ]*\)  *\([^ ][^ ]*\)  *[0-9][0-9]*'
		# shellcheck disable=SC2046 # a list of names
		found=$(within 5 crictl --runtime-endpoint "unix://$1" pods --state ready 2>/dev/null </dev/null) &&
			names "$kind" $(printf '%s\n' "$found" | sed -n -e "s/$pod  *[^ ][^ ]* *\$/\2\/\1/p;t" -e "s/$pod *\$/\2\/\1/p")
	elif have ctr && [ "$kind" != crio ]; then
		found=$(within 5 ctr -a "$1" -n k8s.io tasks ls -q 2>/dev/null </dev/null) && line "$kind tasks $(printf '%s' "$found" | grep -c .)"
	fi
}

probe_kubernetes() {
	if have kubelet; then ask 5 kubelet --version; fi
	if have k3s; then ask 5 k3s --version; fi
	if have rke2; then ask 5 rke2 --version; fi
	if have k0s; then ask 5 k0s version; fi
	[ -r /snap/microk8s/current/meta/snap.yaml ] && sed -n "s/^version: *'\{0,1\}\(v[0-9.]*\).*/| microk8s \1/p" \
		/snap/microk8s/current/meta/snap.yaml
	for marker in /etc/kubernetes/kubelet.conf /var/lib/kubelet/kubeadm-flags.env /etc/kubernetes/manifests/kube-apiserver.yaml \
		/var/lib/rancher/k3s/server /var/lib/rancher/k3s/agent /var/lib/rancher/rke2/server /var/lib/rancher/rke2/agent \
		/var/lib/k0s/pki/ca.key /var/lib/k0s /var/snap/microk8s/current /run/nvidia/validations /run/nvidia/driver \
		/run/nvidia/validations/.driver-ctr-ready /usr/local/nvidia/toolkit; do
		exists "$marker" && line "exists $marker"
	done
	[ ! -r /run/nvidia/validations/driver-ready ] || sed -n 's/^IS_HOST_DRIVER=/| host_driver /p' /run/nvidia/validations/driver-ready
	return 0
}

probe_sysctl() {
	for key in net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables; do
		first "/proc/sys/$(printf '%s' "$key" | tr . /)" && line "$key $REPLY"
	done
	return 0
}

# ---------------------------------------------------------------- packages

CONCERN='nvidia\|libnvidia\|xserver-xorg-video-nvidia\|cuda\|libcuda\|linux-image\|linux-headers\|linux-modules-nvidia'
CONCERN="$CONCERN\|linux-objects-nvidia\|linux-signatures-nvidia\|linux-kbuild\|kernel\|kmod-nvidia\|dkms\|containerd\|docker"
CONCERN="$CONCERN\|runc\|crun\|cri-o\|cri-tools\|podman\|moby-\|kubelet\|kubeadm\|kubectl\|initramfs-tools\|dracut"
CONCERN="$CONCERN\|linux-lts\|linux-zen\|linux-hardened\|datacenter-gpu-manager\|libnvsdm\|nvlsm\|nvtop\|xorg-x11-drv-nvidia\|epel-release"
CONCERN="$CONCERN\|python3-dnf-plugin-versionlock\|dnf-plugin-versionlock\|yum-plugin-versionlock"
CONCERN="$CONCERN\|firmware-nvidia\|infiniband-diags\|azurelinux-repos"

# package_manager: the distribution's own, for others can be installed beside it (Fedora has a dpkg, Debian an rpm)
package_manager() {
	# shellcheck disable=SC1091  # the node's
	family=$(. /etc/os-release 2>/dev/null && printf ' %s %s ' "$ID" "$ID_LIKE")
	case $family in
	*' debian '* | *' ubuntu '*) REPLY=apt ;;
	*' rhel '* | *' fedora '* | *' centos '* | *' amzn '* | *' azurelinux '*) REPLY=dnf ;;
	*suse* | *' sles '*) REPLY=zypper ;;
	*' arch '*) REPLY=pacman ;;
	*) if have dpkg-query; then REPLY=apt; elif have zypper; then REPLY=zypper; elif have rpm; then REPLY=dnf; elif have pacman; then REPLY=pacman; else REPLY=; fi ;;
	esac
}

probe_packages() {
	package_manager
	if [ "$REPLY" = apt ] && have dpkg-query; then
		line "manager apt"
		# every package is asked for and few are kept: what another package's half-finished state blocks is seen so
		# shellcheck disable=SC2016 # dpkg-query's own variables
		within 8 dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n' 2>/dev/null |
			sed -n -e "s/^.[ic] $tab\($CONCERN\)/| &/p;t" -e "/^.[in] /d;/^.c /d" -e 's/^/| /p'
	elif { [ "$REPLY" = dnf ] || [ "$REPLY" = zypper ]; } && have rpm; then
		line "manager $REPLY"
		within 12 rpm -qa --qf 'ii \t%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\n' 2>/dev/null |
			sed -n "s/^ii $tab\($CONCERN\)/| &/p"
	elif [ "$REPLY" = pacman ] && have pacman; then
		line "manager pacman"
		within 8 pacman -Q 2>/dev/null | sed -n "s/^\(\($CONCERN\)[^ ]*\|linux\) \(.*\)/| ii $tab\1$tab\3$tab/p"
	else
		remark "no package manager that gpunode knows"
	fi
}

probe_holds() {
	for file in /etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml /etc/yum/pluginconf.d/versionlock.list /etc/zypp/locks; do
		[ -s "$file" ] && sed 's/^/| /' "$file"
	done
	[ ! -r /etc/pacman.conf ] || for file in /etc/pacman.conf $(sed -n 's/^ *Include *= *//p' /etc/pacman.conf); do
		[ -r "$file" ] && sed -n 's/^ *IgnorePkg *= */| IgnorePkg /p' "$file"
	done
	return 0
}

# probe_locks: who holds the package manager's locks, by /proc/locks, which names the inode of each lock
probe_locks() {
	for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/rpm/.rpm.lock /usr/lib/sysimage/rpm/.rpm.lock; do
		[ -e "$file" ] || continue
		inode=$(stat -c %i "$file" 2>/dev/null) || continue
		while read -r _ kind _ _ pid where _; do
			[ "$kind" != '->' ] && [ "${where##*:}" = "$inode" ] && first "/proc/$pid/comm" && line "$file $pid $REPLY"
		done </proc/locks
	done
	for file in /var/lib/pacman/db.lck /run/zypp.pid /var/cache/dnf/metadata_lock.pid; do
		pid=
		[ -s "$file" ] && first "$file" && pid=$REPLY
		[ -n "$pid" ] && [ -d "/proc/$pid" ] && first "/proc/$pid/comm" && line "$file $pid $REPLY"
	done
	[ -e /var/lib/pacman/db.lck ] && line "/var/lib/pacman/db.lck - pacman"
	return 0
}

# ---------------------------------------------------------------- the rest

probe_disk() {
	set --
	for folder in / /boot /usr /var /tmp /var/lib/containerd /var/lib/docker; do
		[ -d "$folder" ] && set -- "$@" "$folder"
	done
	line "paths $*"
	ask 5 df -P -k "$@"
}

probe_journal() {
	if [ -r /var/lib/gpunode/journal.jsonl ]; then
		tail -n 1000 /var/lib/gpunode/journal.jsonl | sed -n -e '/"phase"/{' -e h -e 's/.*"phase": *"\([^"]*\)".*/\1/' -e x \
			-e 's/.*"id": *"\([^"]*\)".*/\1/' -e x -e G -e 's/\n/ /' -e 's/^/| /p' -e '}'
	elif [ -e /var/lib/gpunode ] && [ ! -x /var/lib/gpunode ]; then
		remark "/var/lib/gpunode is not readable"
	fi
}

probe_first_boot() {
	[ -r /usr/lib/gpunode/first-boot ] || return 0
	line "program $(sha256sum </usr/lib/gpunode/first-boot | cut -d ' ' -f 1)"
	line "unit $(within 3 systemctl is-enabled gpunode-firstboot.service 2>/dev/null)"
	[ ! -r /var/lib/gpunode/first-boot ] || quote </var/lib/gpunode/first-boot
}

# probe_sharing: MIG instances, MPS control daemons, and what gpunode keeps of both
probe_sharing() {
	set -- /proc/driver/nvidia/capabilities/gpu*/mig/gi*
	if [ -e "$1" ] && have nvidia-smi; then
		ask 6 nvidia-smi mig -lgi
		ask 6 nvidia-smi mig -lci
	fi
	[ -r /usr/lib/gpunode/mig ] && line "program $(sha256sum </usr/lib/gpunode/mig | cut -d ' ' -f 1)"
	[ -r /var/lib/gpunode/mig ] && quote </var/lib/gpunode/mig
	for unit in gpunode-mig.service gpunode-mps.service; do # systemd's own memory of a unit whose file is new may be old
		[ -e "/etc/systemd/system/$unit" ] &&
			line "unit $unit $(within 3 systemctl is-active "$unit" 2>/dev/null) $(within 3 systemctl is-enabled "$unit" 2>/dev/null)"
	done
	have nvidia-cuda-mps-control || return 0
	threads=
	for file in /proc/[0-9]*/comm; do
		first "$file" && [ "$REPLY" = nvidia-cuda-mps ] || continue # 15 characters are all that a name there has
		case $(tr '\0' ' ' <"${file%comm}cmdline" 2>/dev/null) in *mps-control*) ;; *) continue ;; esac
		file=${file#/proc/}
		line "mps ${file%/comm}"
		threads=yes
	done
	[ -z "$threads" ] || line "threads $(echo get_default_active_thread_percentage | within 3 nvidia-cuda-mps-control 2>/dev/null)"
}

# crio_places: sets $crio_config and $crio_folder, by the arguments of the running daemon
crio_places() {
	crio_config=/etc/crio/crio.conf crio_folder=/etc/crio/crio.conf.d
	set -f
	# shellcheck disable=SC2046 # words of a command line
	set -- $(printf '%s\n' "$units" | sed -n "s/^| process [0-9]*$tab\([^$tab]*\/\)\{0,1\}crio$tab//p" | head -n 1)
	set +f
	while [ $# -gt 0 ]; do
		case $1 in
		--config=* | -c=*) crio_config=${1#*=} ;;
		--config | -c) crio_config=${2:-} ;;
		--config-dir=* | -d=*) crio_folder=${1#*=} ;;
		--config-dir | -d) crio_folder=${2:-} ;;
		esac
		shift
	done
}

probe_files() {
	[ "${units+set}" ] || units=$(probe_units)
	[ "${containerd_config:-}" ] || containerd_root >/dev/null
	unit_flags docker.service dockerd
	docker_config=/etc/docker/daemon.json
	have dockerd || [ ! -x /snap/docker/current/bin/dockerd ] || docker_config=/var/snap/docker/current/config/daemon.json
	pid=$(printf '%s\n' "$units" | docker_pid)
	# of one that runs, with what stands in the variables of its unit
	[ ! -r "/proc/${pid:-none}/cmdline" ] || flags=$(tr '\0\n' '  ' <"/proc/$pid/cmdline")
	case " $flags " in *" --config-file"[=\ ]*)
		docker_config=${flags#*--config-file?}
		docker_config=${docker_config%% *}
		;;
	esac
	line "docker_config $docker_config"
	crio_places
	set -- "$containerd_config" /etc/containerd/conf.d/*.toml /etc/containerd/config.d/*.toml "$docker_config" \
		"$crio_config" "$crio_folder"/* "$crio_folder"/*/* /etc/crio/conf.d/* /usr/share/containers/containers.conf \
		/etc/containers/containers.conf /etc/containers/containers.conf.d/* \
		/etc/nvidia-container-runtime/config.toml /etc/cdi/* /run/cdi/* \
		/etc/rancher/k3s/config.yaml /etc/rancher/k3s/config.yaml.d/* /etc/rancher/rke2/config.yaml \
		/etc/rancher/rke2/config.yaml.d/* /run/k0s/kubelet/config.yaml /var/lib/k0s/kubelet-config.yaml \
		/var/snap/microk8s/current/args/kubelet /var/lib/rancher/*/agent/etc/containerd/config*.toml.d/*.toml \
		/var/lib/rancher/*/agent/etc/containerd/*.toml /var/lib/rancher/*/agent/etc/containerd/*.tmpl \
		/etc/k0s/containerd.toml /etc/k0s/containerd.d/*.toml /var/snap/microk8s/current/args/containerd-template.toml \
		/var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet \
		/etc/kubernetes/manifests/kube-scheduler.yaml /etc/systemd/system/containerd.service.d/*.conf \
		/etc/systemd/system/docker.service.d/*.conf /etc/systemd/system/kubelet.service.d/*.conf \
		/etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/preferences /etc/apt/preferences.d/* /etc/apt/trusted.gpg \
		/etc/apt/trusted.gpg.d/* /etc/apt/keyrings/* /usr/share/keyrings/gpunode-* \
		/usr/share/keyrings/*nvidia* /usr/share/keyrings/*cuda* \
		/usr/share/keyrings/*docker* /usr/share/keyrings/*kubernetes* /etc/apt/apt.conf.d/*unattended-upgrades* \
		/etc/apt/apt.conf.d/*proxy* /etc/yum.repos.d/*nvidia* /etc/yum.repos.d/*cuda* /etc/yum.repos.d/*docker* /etc/yum.repos.d/gpunode-* \
		/etc/zypp/repos.d/*nvidia* /etc/zypp/repos.d/*cuda* /etc/zypp/repos.d/gpunode-* /etc/pki/rpm-gpg/*NVIDIA* /etc/pki/rpm-gpg/*gpunode* /etc/pacman.conf \
		/etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml /etc/profile.d/*cuda* /etc/profile.d/*nvidia* /etc/systemd/system/gpunode-* /etc/gpunode/* /usr/lib/gpunode/metrics \
		/etc/ld.so.conf.d/*cuda* /etc/ld.so.conf.d/*nvidia* /etc/nvidia/gridd.conf \
		/etc/nvidia-imex/nodes_config.cfg /etc/udev/rules.d/*nvidia*
	# shellcheck disable=SC2046 # paths of configuration files, one word each
	set -- "$@" $(containerd_imports "$containerd_config" 3) \
		$(grep -l -E '^[^#]*(nvidia|nouveau|nova_core)' /etc/modprobe.d/* /usr/lib/modprobe.d/* /run/modprobe.d/* 2>/dev/null) \
		$(grep -l -E '^[^#]*(nvidia|overlay|br_netfilter)' /etc/modules /etc/modules-load.d/* /usr/lib/modules-load.d/* 2>/dev/null) \
		$(grep -l -E '^[^#;]*(bridge-nf-call|ip_forward)' /etc/sysctl.conf /etc/sysctl.d/* /run/sysctl.d/* \
			/usr/local/lib/sysctl.d/* /usr/lib/sysctl.d/* 2>/dev/null) $(rancher_files k3s) $(rancher_files rke2)
	sent=$newline
	for file in "$@"; do
		exists "$file" || continue
		case $file in */debian-archive-* | */ubuntu-keyring-* | */ubuntu-archive-* | *~) continue ;; esac # not ours, and long
		case $sent in *"$newline$file$newline"*) continue ;; esac
		sent=$sent$file$newline
	done
	# shellcheck disable=SC2046,SC2086 # a list of paths
	files_meta $sent
}

# rancher_files KIND: containerd's files of k3s or rke2, where its data folder is not the usual one
rancher_files() {
	rancher_folder "$1"
	[ "$folder" = "/var/lib/rancher/$1" ] && return
	for file in "$folder"/agent/etc/containerd/*.toml "$folder"/agent/etc/containerd/*.tmpl \
		"$folder"/agent/etc/containerd/config*.toml.d/*.toml; do
		[ -e "$file" ] && echo "$file"
	done
}

# files_meta PATH…: one stat for all, then the bytes of each
files_meta() {
	[ $# -gt 0 ] || return 0
	stat -L -c '%f %a %U:%G %s %n' "$@" 2>/dev/null | while read -r type mode owner size path; do
		case $type in 8*) ;; *) continue ;; esac # regular files
		printf '#: file %s\n' "$path"
		line "$mode $owner $size"
		[ -L "$path" ] && line "-> $(readlink "$path")"
		if [ ! -r "$path" ]; then
			remark "not permitted"
		elif [ "$size" -gt "$FILE_MAX" ]; then
			remark "larger than $FILE_MAX bytes"
		elif [ "$size" -gt 0 ]; then
			base64 "$path" 2>/dev/null </dev/null | sed 's/^/| /' || remark "no base64"
		fi
	done
	for path in "$@"; do
		[ -L "$path" ] && [ ! -e "$path" ] && printf '#: file %s\n| -> %s\n' "$path" "$(readlink "$path")"
	done
	return 0
}

# containerd_imports FILE DEPTH: the files its `imports` name, and theirs; relative ones start at the file's folder
containerd_imports() {
	[ -r "$1" ] && [ "$2" -gt 0 ] || return 0
	# shellcheck disable=SC2013 # words, not lines: one line may name several
	for glob in $(sed -n '/^ *imports *=/,/\]/p' "$1" | sed -e 's/#.*//' -e 's/^ *imports *= *//' -e "s/[][\"',]/ /g"); do
		case $glob in /*) ;; *) glob=${1%/*}/$glob ;; esac
		for import in $glob; do
			[ -f "$import" ] || continue
			echo "$import"
			(containerd_imports "$import" $(($2 - 1)))
		done
	done
}

# ---------------------------------------------------------------- all of it

wanted=$SECTIONS
if [ "${GPUNODE_IN:-}" ] && [ -r "$GPUNODE_IN/sections" ]; then
	wanted=$(cat "$GPUNODE_IN/sections")
fi
echo "#: gpunode-probe 1"
for section in $SECTIONS; do
	for name in $wanted; do
		[ "$name" = "$section" ] || continue
		echo "#: $section"
		"probe_$section"
	done
done
if [ "${GPUNODE_IN:-}" ] && [ -r "$GPUNODE_IN/paths" ]; then
	IFS=$newline
	# shellcheck disable=SC2046 # one path or glob a line
	set -- $(cat "$GPUNODE_IN/paths")
	unset IFS
	files_meta "$@"
fi
echo "#: end"
