# shellcheck shell=sh
# shellcheck disable=SC2154  # variables of the program that this is a part of
# The probe's sections about what decides the speed of GPUs: PCIe links and RDMA ports, settings of the host.  Stands
# before probe.sh, whose words they are written in.

# probe_links: every PCIe function from the root to each GPU and RDMA device, each once; the ports of the latter
probe_links() {
  local shown device port
  [ -d /sys/bus/pci/devices ] || return 0
  shown=' '
  for device in /sys/bus/pci/devices/*; do
    first "$device/vendor"
    [ "$REPLY" = 0x10de ] || continue
    first "$device/class"
    case $REPLY in 0x03*) link_path "$device" ;; esac
  done
  for device in /sys/class/infiniband/*; do
    [ ! -e "$device/device/vendor" ] || link_path "$device/device"
  done
  [ "$(id -u)" = 0 ] || [ "$shown" = ' ' ] || denied "not root: the ACS of bridges is not read"
  for port in /sys/class/infiniband/*/ports/*; do
    [ ! -e "$port/state" ] || rdma_port "$port"
  done
  hidden_devices
}

# link_path DEVICE: a line for it and for each bridge above it
link_path() {
  local folder iommu slot parent up
  folder=$(cd -P "$1" 2>/dev/null && echo "$PWD")
  iommu=none
  if first "$folder/iommu_group/type"; then iommu=$REPLY; elif [ -e "$folder/iommu_group" ]; then iommu=-; fi
  while :; do
    slot=${folder##*/} parent=${folder%/*}
    case ${parent##*/} in *:*:*.*) up=${parent##*/} ;; *) up=- ;; esac
    case $shown in *" $slot "*) return ;; esac
    shown="$shown$slot "
    link_line "$folder"
    iommu=-
    [ "$up" != - ] || return
    folder=$parent
  done
}

link_line() {
  local words name
  words=
  for name in current_link_speed max_link_speed current_link_width max_link_width; do
    first "$1/$name" || REPLY=-
    words="$words ${REPLY%% *}"
  done
  acs "$1"
  words="$words $REPLY"
  for name in fatal=FATAL nonfatal=NONFATAL correctable=COR; do
    aer "$1/aer_dev_${name%=*}" "${name#*=}"
    words="$words $REPLY"
  done
  line "pcie $slot $up$words $iommu"
}

# aer FILE WORD: the number in its line TOTAL_ERR_WORD N, in $REPLY
aer() {
  local word number
  REPLY=-
  [ ! -r "$1" ] || while read -r word number; do
    [ "$word" != "TOTAL_ERR_$2" ] || REPLY=$number
  done <"$1"
}

# acs FOLDER: the control word of its ACS capability, or none, in $REPLY: a walk through the extended configuration space, which
# only root may read (PCI Express Base Specification, 7.6.3)
acs() {
  local where left next id
  REPLY=-
  # shellcheck disable=SC2046 # one word a byte
  set -- $(od -An -v -tx1 -j256 -N3840 "$1/config" 2>/dev/null)
  [ $# = 3840 ] || return 0
  REPLY=none where=1 left=48 next=0
  while [ "$where" -gt 0 ] && [ "$left" -gt 0 ]; do
    eval "id=\${$((where + 1))}\${$where} next=\$((0x\${$((where + 3))} * 16 + 0x\${$((where + 2))} / 16))"
    if [ "$id" = 000d ]; then
      eval "REPLY=0x\${$((where + 7))}\${$((where + 6))}"
      return
    fi
    where=$((next - 255)) left=$((left - 1))
    [ "$where" -le 3833 ] || return 0
  done
}

# rdma_port /sys/class/infiniband/DEVICE/ports/N
rdma_port() {
  local device words name place
  device=${1%/ports/*}
  words=
  for name in state phys_state rate link_layer; do
    first "$1/$name" || REPLY=-
    case $name in rate) REPLY=${REPLY%% *} ;; *) REPLY=${REPLY##*: } ;; esac
    words="$words ${REPLY:--}"
  done
  place=$(cd -P "$device/device" 2>/dev/null && echo "${PWD##*/}")
  line "rdma ${device##*/} ${1##*/} ${place:--}$words"
}

# hidden_devices: GPUs that the loaded driver has and that may not be opened here: where sshd's DeviceAllow leaves them
# out, nvidia-smi lists fewer.  Asked only then: who opens one wakes it up.
hidden_devices() {
  local count folder file
  count=0
  for folder in /proc/driver/nvidia/gpus/*/; do
    [ ! -d "$folder" ] || count=$((count + 1))
  done
  case ${answer:-} in *"$newline| $((count - 1)), "* | "| $((count - 1)), "*) return ;; esac
  [ "$count" -gt 0 ] && [ "$(id -u)" = 0 ] || return 0
  for file in /dev/nvidia[0-9]*; do
    # shellcheck disable=SC2016 # of the inner shell
    case $(within 2 sh -c ': <"$1"' sh "$file" 2>&1) in *'not permitted'*) line "hidden $file" ;; esac
  done
}

# ---------------------------------------------------------------- settings of the host

# kernel_arguments WORD: those that concern us, of a command line
kernel_arguments() {
  tr ' ' '\n' | sed -n "s/^\(\(iommu\|iommu\.passthrough\|init_on_alloc\)=[A-Za-z0-9_.,:-]*\)\$/| $1 \1/p"
}

# peer_memory: what nvidia-peermem rests on: the RDMA stack, and whether it was built for it, by the modules that it needs
peer_memory() {
  local name text
  have ofed_info && text=$(within 3 ofed_info -s 2>/dev/null </dev/null) && line "ofed ${text%%"$newline"*}"
  [ ! -r /proc/kallsyms ] || if grep -q "[[:space:]]ib_register_peer_memory_client\([[:space:]]\|\$\)" /proc/kallsyms; then
    line "peer_memory yes"
  else
    line "peer_memory no"
  fi
  have modinfo || return 0
  for name in nvidia-peermem nvidia-current-peermem; do # Debian's own driver has the second
    text=$(within 2 modinfo -F depends "$name" 2>/dev/null </dev/null) && line "peermem ${text:-none}" && return
  done
  line "peermem -"
}

# kernel_options: those that concern us, of a kernel's configuration
kernel_options() { sed -n -e 's/^CONFIG_\(PCI_P2PDMA\)=\(.\).*/| option \1 \2/p' -e 's/^# CONFIG_\(PCI_P2PDMA\) is not set.*/| option \1 n/p'; }

probe_tuning() {
  local governors file kernel loader
  governors=' '
  for file in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do
    first "$file" || continue
    case $governors in *" $REPLY "*) ;; *) governors="$governors$REPLY " && line "governor $REPLY" ;; esac
  done
  sed -n 's/.*\[\(.*\)].*/| lockdown \1/p' /sys/kernel/security/lockdown 2>/dev/null
  kernel_arguments argument </proc/cmdline
  loader=$(loader)
  case $loader:$(id -u) in
    update-grub:* | grubby:0) line "loader $loader" && boot_arguments within 5 | kernel_arguments next ;;
  esac
  any /var/lib/kubelet/plugins/compute-domain.nvidia.com && line "imex dra"
  kernel=$(uname -r)
  # by DKMS, and by GDRCopy's own `make drv_install` and its package for one kernel
  for file in "/lib/modules/$kernel"/*/gdrdrv.ko* "/lib/modules/$kernel"/*/*/gdrdrv.ko* "/lib/modules/$kernel"/kernel/drivers/misc/gdrdrv.ko*; do
    any "$file" && line "gdrdrv yes" && break
  done
  any /sys/class/infiniband/* || return 0
  peer_memory
  for file in "/boot/config-$kernel" "/lib/modules/$kernel/config" "/usr/lib/modules/$kernel/config"; do
    [ -r "$file" ] || continue
    kernel_options <"$file"
    return
  done
  [ ! -r /proc/config.gz ] || ! have gzip || gzip -dc /proc/config.gz | kernel_options
}
