#!/bin/sh
# What this machine says of itself, for gpunode: raw text in named sections.  Changes nothing, writes no file.
#
# Runs under dash, busybox ash and bash, as root or not.  Each section is the function `probe_NAME`; its content lines
# begin with "| ", its remarks (no such tool, no answer, cut off) with "! ", those that root would not get with "!! ".
# docs/probe.md describes every section; the others are in the parts before this (probe_*.sh).  $GPUNODE_IN/sections,
# where it exists, names the sections to print, $GPUNODE_IN/paths further files.

SECTIONS="system os_release secure_boot kernels dkms pci lspci driver nvidia_smi nvlink topology links tuning xids
gpu_containers cuda toolkit cdi units runtimes containers kubernetes sysctl packages holds locks journal first_boot sharing files"

# ---------------------------------------------------------------- what gpunode keeps on the node

probe_journal() {
  if [ -r /var/lib/gpunode/journal.jsonl ]; then
    # NUL bytes, and half a line in front of a record, are what a power cut leaves
    tr -d '\000' </var/lib/gpunode/journal.jsonl | sed 's/{"v":[0-9]*,"id":"/\n&/g' | sed -n -e '/"phase"/{' -e h -e 's/.*"phase": *"\([^"]*\)".*/\1/' -e x \
      -e 's/.*"id": *"\([^"]*\)".*/\1/' -e x -e G -e 's/\n/ /' -e 's/^/| /p' -e '}' |
      awk '$2 == "intent" { open[$3] = $0 } $2 != "intent" { delete open[$3] } END { for (id in open) print open[id] }' | sort
    if [ "$(tail -c 4096 /var/lib/gpunode/journal.jsonl | tr -cd '\000' | wc -c)" -gt 0 ]; then
      remark "the journal ends in NUL bytes: a power cut"
    elif [ ! -s /var/lib/gpunode/journal.jsonl ] && any /var/lib/gpunode/backup/*-baseline; then
      remark "the journal is empty, and copies of what it was about are there"
    fi
  elif { [ -e /var/lib/gpunode ] || [ -L /var/lib/gpunode ]; } && [ ! -d /var/lib/gpunode ]; then
    line "blocked /var/lib/gpunode"
  elif [ -e /var/lib/gpunode ] && [ ! -x /var/lib/gpunode ]; then
    denied "/var/lib/gpunode is not readable"
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
  local unit threads file
  set -- /proc/driver/nvidia/capabilities/gpu*/mig/gi*
  if [ "${slow:-}" ] && [ -e "$1" ]; then
    remark "nvidia-smi is slow, and was not asked about MIG"
  elif [ -e "$1" ] && have nvidia-smi; then
    ask_hardware 6 nvidia-smi mig -lgi
    ask_hardware 6 nvidia-smi mig -lci
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

# ---------------------------------------------------------------- all of it

# probe: $wanted of $SECTIONS, then the files of $GPUNODE_IN/paths
probe() {
  local section name
  echo "#: gpunode-probe 1"
  for section in $SECTIONS; do
    for name in $wanted; do
      [ "$name" = "$section" ] || continue
      echo "#: $section"
      "probe_$section"
    done
  done
  if [ "${GPUNODE_IN:-}" ] && [ -r "$GPUNODE_IN/paths" ]; then
    # shellcheck disable=SC2154 # of probe_words.sh
    IFS=$newline
    # shellcheck disable=SC2046 # one path or glob a line
    set -- $(cat "$GPUNODE_IN/paths")
    unset IFS
    files_meta "$@"
  fi
  echo "#: end"
}

wanted=$SECTIONS
if [ "${GPUNODE_IN:-}" ] && [ -r "$GPUNODE_IN/sections" ]; then
  wanted=$(cat "$GPUNODE_IN/sections")
fi
if [ "${GPUNODE_SETTLE:-0}" != 0 ] && [ -r /var/lib/gpunode/lock ] && have flock; then
  flock -s -w "$GPUNODE_SETTLE" /var/lib/gpunode/lock true
fi
# said at once: each line by itself would be a packet for SSH, which both ends encrypt and check
all=$(probe) || exit
printf '%s\n' "$all"
