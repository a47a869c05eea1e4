# shellcheck shell=sh
# shellcheck disable=SC2030,SC2031 # functions whose body is a subshell, which the functions that they call read
# NVIDIA's device files, and the running containers that have some of them; put before probe.sh and reload.sh.
#
# systemd applies its own device rules to every scope again at each daemon-reload (`systemctl enable` and package scripts
# do one, too).  What a container got behind its back is then gone: «Failed to initialize NVML: Unknown Error».  So what
# counts is what systemd has noted for the container's scope, whatever engine, mode or link brought it there
# (docs/runtime.md).

eol='
'
TIMEOUT=
timeout -k 1 1 true >/dev/null 2>&1 && TIMEOUT='timeout -k 1 5'

# briefly COMMAND…: 5 s are enough, where there is a timeout
briefly() { $TIMEOUT "$@" </dev/null 9>&-; }

# nvidia_nodes [ROOT]: lines `MAJOR:MINOR PATH`.  Links are not followed: a container's may lead anywhere.
nvidia_nodes() {
  stat -c '%f %t %T %n' "${1:-}"/dev/nvidia* "${1:-}"/dev/nvidia*/* 2>/dev/null | while read -r kind major minor path; do
    case $kind in 2???) echo "$((0x$major)):$((0x$minor)) ${path#"${1:-}"}" ;; esac # character devices
  done
}

# gpu_containers: lines `ID NAME UNIT MODE STATE DEVICE,DEVICE…[ reloaded]` of the running containers that have GPUs.
# UNIT is the scope in which systemd keeps its devices, - where systemd does not (cgroupfs).  MODE: `hook` when the
# devices were mounted into it behind the runtime's back (legacy), `spec` when they stand in its specification (CDI,
# --device).  STATE, and the devices it is about:
#   kept      systemd leaves them
#   keepable  systemd would take them, unless it is notified of them before (keep_gpus)
#   exposed   systemd would take them, and whether the container has a right to them cannot be seen: with cgroups of
#             version 2, its device file could be one that it has made itself
#   lost      they were taken already
# With cgroups of version 2 that is not seen: `reloaded` where systemd has reloaded since the container started.
gpu_containers() (
  nodes=$(nvidia_nodes)
  [ -n "$nodes" ] || return 0
  processes=$(container_processes) seen=' ' names=
  case $processes in *docker*) names=$(briefly docker ps --no-trunc --format '{{.ID}} {{.Names}}' 2>/dev/null) ;; esac
  case $processes in *libpod*) names=$names$eol$(podman_names) ;; esac
  printf '%s\n' "$processes" | while read -r pid cgroup; do
    case $seen in *" $cgroup "*) continue ;; esac
    dev=$(stat -c %d "/proc/$pid/root/dev" 2>/dev/null) || continue # it has ended
    seen="$seen$cgroup "
    [ "$dev" != "$(stat -c %d /dev)" ] || continue # this machine's own /dev shows all devices, and gives no right to any
    set -- "$(nvidia_nodes "/proc/$pid/root")"
    [ -z "$1" ] || gpu_container "$pid" "$cgroup" "$1"
  done
)

# container_processes: lines `PID CGROUP` of all processes in a cgroup that is named by a container's id, 64 hex digits
container_processes() {
  # with cgroups of version 1 the controller of devices counts; the outermost container is the one this systemd knows
  grep -s -E '^([0-9]+:([a-z,]+,)?devices(,[a-z,]+)?|0:):.*[0-9a-f]{64}' /proc/[0-9]*/cgroup |
    sed -n 's|^/proc/\([0-9]*\)/cgroup:[^:]*:[^:]*:\(.*\)$|\1 \2|; s|\(/[^/]*[0-9a-f]\{64\}[^/]*\).*|\1|p'
}

# podman_names: lines `ID NAME` of podman's running containers, by the processes that watch them, as `podman ps` writes
# files; those of CRI-O are called k8s_…
podman_names() {
  grep -lsx conmon /proc/[0-9]*/comm | while read -r file; do tr '\0' ' ' <"${file%comm}cmdline" && echo; done 2>/dev/null |
    sed -n '/ -n k8s_/d; s/^.* -c \([0-9a-f]\{64\}\) .* -n \([A-Za-z0-9_.-]*\) .*$/\1 \2/p'
}

# gpu_container PID CGROUP NODES: its line, from the container's nodes and $nodes, those of this machine
gpu_container() (
  unit=${2##*/}
  id=$(printf '%s' "$unit" | sed 's/.*\([0-9a-f]\{64\}\).*/\1/')
  case $unit in *.scope | *.service) ;; *) unit=- ;; esac
  bound=$(sed -n 's|^[^ ]* [^ ]* [^ ]* [^ ]* \(/dev/nvidia[^ ]*\) .*|\1 |p' "/proc/$1/mountinfo" 2>/dev/null)
  mode=spec
  [ -z "$bound" ] || mode=hook
  # of cgroups of version 1 the kernel says what is allowed; of version 2, where a program decides, it does not
  allowed=$(cat "/sys/fs/cgroup/devices$2/devices.list" 2>/dev/null)
  noted=$(noted_devices "$unit")
  specification=$(bundle "$id")
  kept='' keepable='' exposed='' lost=''
  while read -r number path; do
    case "$eol$3" in *"$eol$number "*) ;; *) continue ;; esac
    if [ -n "$allowed" ] && ! cgroup_allows "$number"; then
      case $bound in *"$path "*) lost=$lost,$path ;; esac # else it was never given: a node can be made by anybody
    elif systemd_keeps "$number" "$path"; then
      kept=$kept,$path
    else
      case $allowed:$bound:$specification in
        [!:]* | :*"$path "*:* | :*:*'"path":"'"$path"'"'*) keepable=$keepable,$path ;;
        *) exposed=$exposed,$path ;;
      esac
    fi
  done <<NODES
$nodes
NODES
  state=kept devices=$kept
  [ -z "$lost" ] || state=lost devices=$lost
  [ -z "$keepable" ] || state=keepable devices=$keepable
  [ -z "$exposed" ] || state=exposed devices=$exposed
  [ -n "$devices" ] || return 0
  case $allowed:$state in :keepable | :exposed) ! reloaded "$unit" || devices="$devices reloaded" ;; esac
  echo "$id $(container_name "$id") $unit $mode $state ${devices#,}"
)

# reloaded UNIT: systemd has read its units again since this one started.  252 and later say when, 247 does not
reloaded() {
  local last start
  last=$(briefly systemctl show -p UnitsLoadTimestampMonotonic 2>/dev/null)
  start=$(briefly systemctl show -p ActiveEnterTimestampMonotonic "$1" 2>/dev/null)
  last=${last#*=} start=${start#*=}
  [ "${last:-0}" -gt "${start:-0}" ] && [ "$start" -gt 0 ]
} 2>/dev/null

# cgroup_allows NUMBER: by $allowed, the kernel's list for a cgroup of version 1
cgroup_allows() {
  case $allowed in *"c $1 rw"* | *"c ${1%:*}:* rw"* | *'a *:* rw'*) ;; *) return 1 ;; esac
}

# unlinked_nodes: lines of nvidia_nodes whose /dev/char/MAJOR:MINOR is missing
unlinked_nodes() {
  nvidia_nodes | while read -r number path; do [ -e "/dev/char/$number" ] || echo "$number $path"; done
}

# noted_devices UNIT: what systemd would apply, lines `DeviceAllow=WHAT ACCESS`; `all` where it restricts nothing
noted_devices() {
  local answer
  [ "$1" != - ] || { echo all && return; }
  answer=$(briefly systemctl show -p DevicePolicy -p DeviceAllow "$1" 2>/dev/null)
  case $answer in
    DevicePolicy=auto) echo all ;; # policy auto restricts as soon as something is listed
    *) echo "$answer" ;;
  esac
}

# systemd_keeps NUMBER PATH: by $noted
systemd_keeps() {
  case $noted in
    all | *"DeviceAllow=$2 rw"* | *'DeviceAllow=char-* rw'* | *"DeviceAllow=char-$(driver_name "${1%:*}") rw"*) return 0 ;;
    *"DeviceAllow=/dev/char/$1 rw"*) ;;
    *) return 1 ;;
  esac
  # from 240 on systemd reads the number out of the path, before it needed the link (systemd pull request 10750)
  [ -e "/dev/char/$1" ] || [ "$(systemd_version)" -ge 240 ]
}

driver_name() { sed -n "/^Block/q; s/^ *$1 //p" /proc/devices | head -n 1; }

systemd_version() {
  local answer
  answer=$(briefly systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
  echo "${answer:-0}"
}

# bundle ID: the specification that the container's runtime was started with, without white space: the engine's word
bundle() {
  for file in /run/containerd /run/docker/containerd/daemon /run/k3s/containerd /run/k0s/containerd \
    /var/snap/microk8s/common/run/containerd; do
    cat "$file/io.containerd.runtime.v2.task/"*"/$1/config.json" 2>/dev/null
  done | tr -d ' \n\t'
  cat /run/containers/storage/*-containers/"$1"/userdata/config.json \
    /var/lib/containers/storage/*-containers/"$1"/userdata/config.json 2>/dev/null | tr -d ' \n\t'
}

# container_name ID: by $names of docker and podman, POD/CONTAINER by $specification, else the beginning of the id
container_name() {
  case $eol$names in *"$eol$1 "*)
    name=${names##*"$1 "}
    echo "${name%%"$eol"*}"
    return
    ;;
  esac
  pod=$(annotation 'cri\.sandbox-name\|pod\.name') container=$(annotation 'cri\.container-name\|container\.name')
  name=$(printf '%s' "${pod:+$pod/}$container" | tr -cd 'A-Za-z0-9_./-')
  echo "${name:-$(printf '%.12s' "$1")}"
}

annotation() { printf '%s\n' "$specification" | sed -n "s/.*\"io\.kubernetes\.\($1\)\":\"\([^\"]*\)\".*/\2/p"; }
