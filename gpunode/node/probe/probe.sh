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
  if [ -r "$GPUNODE_STATE/journal.jsonl" ]; then
    unfinished | sort | sed 's/^/| intent /'
    if [ "$(tail -c 4096 "$GPUNODE_STATE/journal.jsonl" | tr -cd '\000' | wc -c)" -gt 0 ]; then
      remark "the journal ends in NUL bytes: a power cut"
    elif [ ! -s "$GPUNODE_STATE/journal.jsonl" ] && any "$GPUNODE_STATE"/backup/*-baseline; then
      remark "the journal is empty, and copies of what it was about are there"
    fi
  elif { [ -e "$GPUNODE_STATE" ] || [ -L "$GPUNODE_STATE" ]; } && [ ! -d "$GPUNODE_STATE" ]; then
    line "blocked $GPUNODE_STATE"
  elif [ -e "$GPUNODE_STATE" ] && [ ! -x "$GPUNODE_STATE" ]; then
    denied "$GPUNODE_STATE is not readable"
  fi
}

probe_first_boot() {
  [ -r /usr/lib/gpunode/first-boot ] || return 0
  line "program $(sha256sum </usr/lib/gpunode/first-boot | cut -d ' ' -f 1)"
  line "unit $(within 3 systemctl is-enabled gpunode-firstboot.service 2>/dev/null)"
  [ ! -r "$GPUNODE_STATE/first-boot" ] || quote <"$GPUNODE_STATE/first-boot"
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
  [ -r "$GPUNODE_STATE/mig" ] && quote <"$GPUNODE_STATE/mig"
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
if [ "${GPUNODE_SETTLE:-0}" != 0 ] && [ -r "$GPUNODE_STATE/lock" ]; then
  flock -s -w "$GPUNODE_SETTLE" "$GPUNODE_STATE/lock" true
fi
# said at once: each line by itself would be a packet for SSH, which both ends encrypt and check
all=$(probe) || exit
printf '%s\n' "$all"
