# shellcheck shell=sh
# shellcheck disable=SC2154  # variables of the program that this is a part of
# The probe's sections about the machine: system, kernels and their modules, devices, the driver.  Stands before probe.sh,
# whose words they are written in.

# ---------------------------------------------------------------- machine

probe_system() {
  local uid marker
  # shellcheck disable=SC2046 # three words: node name, release, machine
  set -- $(uname -n -r -m)
  line "hostname ${1:-}"
  line "kernel ${2:-}"
  line "machine ${3:-}"
  first /proc/sys/kernel/random/boot_id && line "boot_id $REPLY"
  if booted_systemd; then line "init systemd"; else first /proc/1/comm && line "init $REPLY"; fi
  namespaces
  [ -z "$REPLY" ] || line "namespaces $REPLY"
  if have systemd-detect-virt; then
    # it takes the files below for a container's, also those that an image of a virtual machine was left with
    [ "$REPLY" = initial ] || REPLY=
    line "virtualization $(systemd-detect-virt ${REPLY:+--vm} 2>/dev/null)"
  elif [ "$REPLY" != initial ] || ! processor_of_guest; then
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
  [ "$uid" = 0 ] || denied "not root: what only root may read is missing"
}

# namespaces: in $REPLY, `initial` on a machine of its own: in the kernel's first PID namespace, whose inode is fixed
# (PROC_PID_INIT_INO, by which systemd's detect_container goes last), with the root that PID 1 has; `other` in another
# one, as containers are; "" where neither is said
namespaces() {
  local root
  REPLY=$(readlink /proc/self/ns/pid 2>/dev/null)
  case $REPLY in
  'pid:[4026531836]')
    root=$(root_of self)
    REPLY=
    [ -z "$root" ] || [ "$root" != "$(root_of 1)" ] || REPLY=initial
    ;;
  pid:*) REPLY=other ;;
  *) REPLY= ;;
  esac
}

# root_of PID: device and folder of its root.  Its own mount namespace alone is no container's: services have one, too.
root_of() {
  sed -n -e '/^[0-9]* [0-9]* [^ ]* [^ ]* \/ /h' -e '${' -e x -e 's/^[0-9]* [0-9]* \([^ ]* [^ ]*\) .*/\1/p' -e '}' "/proc/$1/mountinfo" 2>/dev/null
}

# processor_of_guest: whether the processor says that it is a virtual machine's, in systemd's words
processor_of_guest() {
  case "$(grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null) " in
  *' hypervisor '*) line "virtualization vm-other" ;;
  flags*) line "virtualization none" ;;
  *) return 1 ;;
  esac
}

probe_os_release() {
  local file
  for file in /etc/os-release /usr/lib/os-release; do
    [ -r "$file" ] && quote <"$file" && return
  done
  remark "no os-release"
}

probe_secure_boot() {
  local file
  if [ ! -d /sys/firmware/efi ]; then
    line "efi no"
    return
  fi
  line "efi yes"
  for file in /sys/firmware/efi/efivars/SecureBoot-*; do
    # 4 bytes of attributes, then the value (UEFI specification, 3.3)
    [ -r "$file" ] && line "secure_boot $(od -An -tu1 -j4 -N1 "$file" 2>/dev/null)" && return
  done
  if have mokutil; then ask_hardware 3 mokutil --sb-state; else remark "no readable SecureBoot variable and no mokutil"; fi
}

# ---------------------------------------------------------------- kernels and their modules

probe_kernels() {
  local modules folder release image headers file
  modules=
  for folder in /lib/modules/[0-9]*/; do # others are folders that some program left
    [ -d "$folder" ] || continue
    folder=${folder%/}
    release=${folder##*/}
    image=no headers=no
    for file in "/boot/vmlinuz-$release" "$folder/vmlinuz" "/boot/vmlinux-$release" "/boot/Image-$release"; do
      [ -e "$file" ] && image=yes
    done
    [ -e "$folder/build/." ] && headers=yes
    line "kernel $release image=$image headers=$headers"
    kernel_package "$release" "$folder"
    nvidia_modules "$folder"
  done
  for file in /boot/vmlinuz-*; do
    release=${file#/boot/vmlinuz-}
    grep -qsx "$release" /lib/modules/*/pkgbase && continue # Arch names them by package: the folder has the image too
    [ -e "$file" ] && [ ! -d "/lib/modules/$release" ] && line "kernel $release image=yes headers=no"
  done
  [ "$modules" ] || return 0
  # shellcheck disable=SC2086 # paths below /lib/modules have no spaces
  ! have modinfo || in_full 20 modinfo $modules 2>/dev/null |
    sed -n 's/^\(filename\|version\|license\): */| module \1 /p;s/^cut /| &/p'
  for file in $modules; do
    case $file in
    *.ko) module_strings "$file" ;;
    *) have modinfo || remark "$file: compressed, and no modinfo" ;;
    esac
  done
}

# kernel_package RELEASE FOLDER: the package that the kernel is of, which its release does not always tell
kernel_package() {
  if first "$2/pkgbase"; then
    line "package $1 $REPLY"
  elif have rpm; then
    for file in "/boot/vmlinuz-$1" "$2/vmlinuz"; do
      [ -e "$file" ] && REPLY=$(within 3 rpm -qf --qf '%{NAME}\n' "$file" 2>/dev/null) && line "package $1 ${REPLY%%[!a-zA-Z0-9._+-]*}" && return
    done
  fi
}

# nvidia_modules FOLDER: adds the NVIDIA kernel modules below /lib/modules/RELEASE to $modules.  Debian calls it
# nvidia-current.ko, Ubuntu's prebuilt ones lie in kernel/nvidia-NNN, RHEL's in extra or weak-updates, Arch's in
# extramodules.
nvidia_modules() {
  local file
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
  local lines
  have dkms || return 0
  lines=$(dkms_tree) || { ask 10 dkms status && return; }
  [ -z "$lines" ] || printf '%s\n' "$lines" | quote
}

# ---------------------------------------------------------------- devices

probe_pci() {
  local class device
  ids=
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
  local id subsystem driver virtual
  first "$1/device" && id=10de:${REPLY#0x} ids=${ids:+$ids\\|}${REPLY#0x}
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
    denied "${1##*/}: vpd not readable"
    return
  fi
  case $(within 3 head -c 4096 "$1/vpd" 2>/dev/null | tr -cd 'A-Za-z0-9_') in
  *SW_MNG*) line "${1##*/} SW_MNG" ;;
  esac
}

# probe_lspci: the names of NVIDIA's devices, picked out of the list that lspci reads whole, for all vendors
probe_lspci() {
  local file
  [ "${ids:-}" ] || return 0
  for file in /usr/share/hwdata/pci.ids /usr/share/misc/pci.ids; do
    [ -r "$file" ] && sed -n -e '/^10df /q' \
      -e "/^10de /,\$s/^$tab\($ids\)  \(.*\)/| name 10de:\1 NVIDIA Corporation \2 [10de:\1]/p" "$file" && return
  done
  ! have lspci || ask_hardware 5 lspci -D -nn -d 10de:
}

probe_driver() {
  local module file folder
  if [ -r /proc/driver/nvidia/version ]; then
    sed 's/^/| proc /' /proc/driver/nvidia/version
  fi
  [ ! -r /proc/driver/nvidia/params ] || sed -n 's/^[A-Za-z0-9_]*: ./| parameter &/p' /proc/driver/nvidia/params
  for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem nvidia_fs nvidia_vgpu_vfio gdrdrv nouveau nova_core overlay br_netfilter ib_umad; do
    [ -d "/sys/module/$module" ] || continue
    first "/sys/module/$module/version"
    line "module $module $REPLY"
  done
  # built into the kernel they have no folder in /sys/module, and show here
  [ -d /sys/module/overlay ] || case $(cat /proc/filesystems 2>/dev/null) in *"${tab}overlay"*) line "module overlay" ;; esac
  [ -d /sys/module/br_netfilter ] || [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || line "module br_netfilter"
  linked_library
  [ -z "$REPLY" ] || line "linked $REPLY"
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

# linked_library: in $REPLY, the file that a program gets which loads NVIDIA's library: the linker's own answer
linked_library() {
  local file
  for file in $([ -z "${LD_LIBRARY_PATH:-}" ] || printf '%s' "$LD_LIBRARY_PATH" | sed -e 's/[^:;][^:;]*/&\/libnvidia-ml.so.1/g' -e 'y/:;/  /') \
    $(ldconfig -p 2>/dev/null | sed -n 's/^[[:space:]]*libnvidia-ml\.so\.1 (libc6,\(x86-64\|AArch64\).* => //p'); do
    [ -e "$file" ] && REPLY=$(readlink -f "$file") && return
  done
  REPLY=
}

# driver_answers: whether a kernel module is there for nvidia-smi to ask.  Started without one it still makes device
# files in /dev, which would change the node.  WSL has none: there the driver is Windows'.
driver_answers() { any /proc/driver/nvidia/version || any /dev/dxg; }

# driver_branch: the loaded driver's, without a fork, in $REPLY; "" where it does not say
driver_branch() {
  first /proc/driver/nvidia/version
  set -f
  for REPLY in $REPLY ''; do
    case $REPLY in [1-9][0-9][0-9].[0-9]*) break ;; esac
  done
  set +f
  REPLY=${REPLY%%.*}
}

# seconds that nvidia-smi gets for the first question: it tries again to start each GPU that did not start, which takes
# 6 s and more each; asked no more once it took longer than others do
SMI_SECONDS=20 SMI_USUAL=5

# uptime: whole seconds, without a fork, in $REPLY
uptime() { first /proc/uptime && REPLY=${REPLY%%.*}; }

probe_nvidia_smi() {
  local branch fields word unknown without began
  answer=
  if ! have nvidia-smi; then
    ! driver_answers || remark "no nvidia-smi"
    return
  fi
  if ! driver_answers; then
    line "no NVIDIA driver is loaded, so nvidia-smi was not asked"
    return
  fi
  driver_branch
  branch=$REPLY fields=
  for word in $SMI_FIELDS; do # NAME, or NAME=BRANCH that is the first to know it
    case $word in *=*) [ "${branch:-${word#*=}}" -ge "${word#*=}" ] || continue ;; esac
    fields=${fields:+$fields,}${word%=*}
  done
  # a release that the table has wrong, or whose version is not known, names the first field that it does not know
  uptime
  began=${REPLY:-0}
  while [ "$fields" ]; do
    answer=$(ask_hardware "$SMI_SECONDS" nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits)
    uptime
    slow=$((${REPLY:-0} - began))
    [ "$slow" -gt "$SMI_USUAL" ] || slow=
    [ -z "$slow" ] || break
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
  if [ "$slow" ]; then
    remark "nvidia-smi took $slow s, and was asked nothing more"
    return
  fi
  # What remaps rows (Ampere and later) retires no pages: the second field is [N/A].  One more start, for older drivers.
  case ,$fields, in *,remapped_rows.pending,*) return ;; esac
  case $answer in *"$newline| exit: "*) return ;; *'| '[0-9]', ['* | *'| '[0-9][0-9]', ['*) ;; *) return ;; esac
  [ "${branch:-$SMI_REMAPPED_SINCE}" -lt "$SMI_REMAPPED_SINCE" ] ||
    ask_hardware 6 nvidia-smi --query-remapped-rows="$SMI_REMAPPED" --format=csv,noheader | sed 's/^| /| rows /'
}

probe_nvlink() {
  # links join at least two GPUs
  [ "${slow:-}" ] || case $answer in *"$newline| 1, "*) ask_hardware 5 nvidia-smi nvlink --status ;; esac
}

probe_topology() {
  [ "${slow:-}" ] || case $answer in *"$newline| 1, "*) ask_hardware 5 nvidia-smi topo -m ;; esac
}

# gpu_faults: a kernel log, by kernel_messages, as lines `KIND COUNT LINE` with the first line of each: Xids by code and
# GPU and what the driver says of a GPU that it could not start, since boot; since the module was loaded, GSP firmware
# that does not answer, GPUs that need a reset, and tasks or GPUs that hang (of a task the driver stands in its trace)
gpu_faults() {
  awk '
    function add(kind, key, text) {
      key = kind " " key
      if (!(key in count) && kinds == 300) return
      if (!(key in count)) order[++kinds] = key
      if (!(key in count) || (since[key] != loads && kind !~ /^(xid|start)$/)) { first[key] = text; count[key] = 0 }
      count[key]++
      since[key] = loads
    }
    BEGIN { loads = 0 }
    /^gpunode-exit / { ended = $2; next }
    { read = 1 }
    /Linux version / { whole = 1 }
    /some messages lost|Missed [0-9]+ kernel messages/ { gaps = 1 }
    match($0, /NVRM: Xid \([^)]*\): [0-9]+/) { add("xid", substr($0, RSTART, RLENGTH), $0) }
    /NVRM: .*RmInitAdapter failed/ { words = $0; sub(/.*NVRM: /, "", words); add("start", words, $0) }
    /Nvlink Core is being initialized/ { loads++ }
    /NVRM: .*([Hh]eartbeat timed out|[*] GSP Timeout [*]|PMU has halted|Bad sequence number)/ { add("gsp", "", $0) }
    /NVRM: .*(NV_ERR_RESET_REQUIRED|G[Pp][Uu] marked for reset)/ { add("reset", "", $0) }
    /NVRM: .*recovery action changed from .* \(None\)/ { since["reset "] = -1 }
    /NVRM: .*(GPU is probably locked|out when waiting for .*scrub)|waiting for GPU progress|soft lockup - CPU.*\[(nvidia|nv-hostengine)|likely last held by task nvidia/ { add("hung", "", $0) }
    / blocked for more than [0-9]+ seconds/ || (!left && /task:[^ ]+ +state:D /) { task = $0; left = 60 }
    left && (/\[nvidia[a-z_]*\]/ || (left == 60 && /task (nvidia|nv-hostengine)/)) { add("hung", "", task); left = 0 }
    left { left-- }
    END {
      for (n = 1; n <= kinds; n++) {
        key = order[n]
        split(key, part, " ")
        if (part[1] ~ /^(xid|start)$/ || since[key] == loads) print "| " part[1] " " count[key] " " substr(first[key], 1, 600)
      }
      if (!read) print "!! neither dmesg nor the journal of the kernel is permitted"
      else if (ended != 0) print "! the kernel log took too long, and was read in part"
      else if (!whole || gaps) print "! the kernel log has lost its beginning, or a part, since boot"
    }'
}

probe_xids() {
  [ -d /proc/driver/nvidia ] || return 0
  have awk || { remark "no awk"; return; }
  { kernel_messages; printf '\ngpunode-exit %s\n' "$?"; } | gpu_faults
}

# by devices.sh, which is sent before this
probe_gpu_containers() {
  local nodes
  nodes=$(nvidia_nodes)
  [ "$nodes" ] || return 0
  printf '%s\n' "$nodes" | while read -r number path; do
    if [ -e "/dev/char/$number" ]; then line "linked $number $path"; else line "unlinked $number $path"; fi
  done
  if [ "$(id -u)" = 0 ]; then
    gpu_containers | sed 's/^/| container /'
  else
    denied "not root: containers are not seen"
  fi
}
