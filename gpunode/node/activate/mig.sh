#!/bin/sh
# MIG: every GPU has the mode and instances that are wanted, or is whole again; and a unit that does the same at every boot,
# because no instance outlives one.  nvidia-smi does it.
# Request and output: core/items/sharing.py.  Runs behind common.sh, transaction.sh and own_units.sh; at boot without a
# controller, when it writes no file that the journal knows: what stands on the node about its success is of that boot.
# shellcheck disable=SC2154  # variables of the parts before it

UNIT=gpunode-mig.service
LABELS=/etc/kubernetes/node-feature-discovery/features.d/gpunode-mig # node-feature-discovery makes labels of it
CUT=$GPUNODE_STATE/mig-cut # while it is there, what offers GPUs has not seen how they are cut
reboot_reason=

# conclude STATUS MESSAGE [FIX]: the last thing, with what stands on the node about it: success, pending, failed
conclude() {
  resume
  checking || restart_plugins
  case $1:$reboot_reason in unchanged:* | changed:) state=success ;; changed:*) state=pending ;; *) state=failed ;; esac
  [ -z "$reboot_reason" ] || state=pending
  checking || [ -n "$(word remove)" ] || { record_state "$state" "$2" && label "$state"; }
  [ "$state" != failed ] || tail -n 20 "$log"
  finish "$@"
}

record_state() {
  [ ! -e "$GPUNODE_STATE/mig" ] || ! grep -qx "status $1" "$GPUNODE_STATE/mig" || ! grep -qxF "message $2" "$GPUNODE_STATE/mig" || return 0
  (umask 077 && mkdir -p "$GPUNODE_STATE" && printf 'status %s\nat %s\nmessage %s\n' "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$2" >"$GPUNODE_STATE/mig") 2>>"$log"
}

# label STATE: as NVIDIA's mig-manager labels nodes; only where the request says that Kubernetes is here
label() {
  [ -n "$(word labels)" ] || return 0
  printf 'nvidia.com/mig.config=gpunode\nnvidia.com/mig.config.state=%s\n' "$1" >"$GPUNODE_IN/.labels"
  cmp -s "$GPUNODE_IN/.labels" "$LABELS" && return
  (umask 022 && mkdir -p "${LABELS%/*}" && cp "$GPUNODE_IN/.labels" "$LABELS") 2>>"$log"
}

# instances SLOT: lines `INSTANCE PROFILE START`, those with a compute instance only; `INSTANCE - -` for one without
instances() { cuts "$1" | awk '{ print $1, ($4 == "-" ? "- -" : $2 " " $3) }'; }

# wanted SLOT: lines `PROFILE/TUPLE`; a tuple is what `mig -cgi` takes: number or name of the profile, with :START
wanted() { requested gpus | sed -n "s/^$1 on //p" | tr ' ' '\n'; }

# change SLOT have|destroy|create: what the controller has seen of instances, and worked out
change() { requested instances | sed -n "s/^$1 $2 //p"; }

# is_wanted SLOT: the instances in .have are of the profiles that are wanted, all with a compute instance.  Where they are
# does not matter then.
is_wanted() {
  wanted "$1" | sed 's|/.*||' | sort >"$GPUNODE_IN/.wanted.names"
  cut -d ' ' -f 2 "$GPUNODE_IN/.have" | sort | cmp -s - "$GPUNODE_IN/.wanted.names"
}

# differ SLOT: of .have makes .surplus, the ids of instances that go, and .lacking, the tuples of those that are made, as
# the controller has worked them out of the instances that it saw.  Without that, at boot and in an undo, all are made again.
differ() {
  : >"$GPUNODE_IN/.surplus"
  : >"$GPUNODE_IN/.lacking"
  ! is_wanted "$1" || return 0
  if [ ! -e "$GPUNODE_IN/instances" ]; then
    cut -d ' ' -f 1 "$GPUNODE_IN/.have" >"$GPUNODE_IN/.surplus"
    wanted "$1" | sed 's|.*/||' >"$GPUNODE_IN/.lacking"
    return
  fi
  change "$1" have | sort >"$GPUNODE_IN/.seen"
  sort "$GPUNODE_IN/.have" | cmp -s - "$GPUNODE_IN/.seen" || conclude refused "the instances of GPU $1 changed after they were read" "run again"
  change "$1" destroy >"$GPUNODE_IN/.surplus"
  change "$1" create >"$GPUNODE_IN/.lacking"
}

# minor SLOT: the N of its /dev/nvidiaN
minor() { sed -n 's/^Device Minor:[^0-9]*//p' "/proc/driver/nvidia/gpus/$1/information" 2>/dev/null; }

# capabilities SLOT INSTANCE: the device files that whoever uses the instance holds
capabilities() {
  for access in "/proc/driver/nvidia/capabilities/gpu$(minor "$1")/mig/gi$2/access" "/proc/driver/nvidia/capabilities/gpu$(minor "$1")/mig/gi$2"/ci*/access; do
    [ -r "$access" ] && sed -n 's|^DeviceFileMinor:[^0-9]*|/dev/nvidia-caps/nvidia-cap|p' "$access"
  done
}

# devices SLOT: lines `PROFILE UUID` of its instances, and `- UUID` of the GPU itself
devices() {
  smi -L | awk -v gpu="$(number "$1"):" '$1 == "GPU" { mine = $2 == gpu }
    mine && match($0, /UUID: [^)]*/) { print ($1 == "MIG" ? $2 : "-"), substr($0, RSTART + 6, RLENGTH - 6) }'
}

# nobody_has SLOT: refuses while a pod has the GPU, an instance of a profile in .gone, or by a claim any instance of it (the
# DRA driver's names gpu-N and gpu-N-mig-… have the minor; before its 25.12 the number)
nobody_has() {
  [ -s "$GPUNODE_IN/.gone" ] || return 0
  { devices "$1" && echo "- gpu-$(minor "$1")" && echo "- gpu-$(number "$1")"; } |
    awk 'FILENAME == ARGV[1] { gone[$1]; next } ($1 in gone) || $2 ~ /^gpu-/ { print $2 }' "$GPUNODE_IN/.gone" - >"$GPUNODE_IN/.devices"
  pods=$(gpu_pods | awk 'FILENAME == ARGV[1] { gone[$1]; next }
    { for (i = 2; i <= NF; i++) { sub(/::.*|-mig-.*/, "", $i); if ($i in gone) { print $1; next } } }' "$GPUNODE_IN/.devices" - | sort -u | tr '\n' ' ')
  [ -z "$pods" ] || in_use "pods have GPU $1 or instances of it that would go: ${pods% }"
}

counted() { if [ -s "$1" ]; then sort "$1" | uniq -c | awk '{ printf "%s%s × %s", (NR > 1 ? ", " : ""), $1, $2 }'; else printf 'no instance'; fi; }

# ---------------------------------------------------------------- what is to be done, and who stands against it

# look SLOT MODE: a line `SLOT mode on|off` or `SLOT cut` in .work, with its words said; refuses while somebody uses what goes
look() {
  now=$(ask "$1" mig.mode.current) next=$(ask "$1" mig.mode.pending)
  case $now in
    Enabled | Disabled) ;;
    '' | *N/A* | *'No devices'*) [ "$2" = off ] && return
      conclude refused "GPU $1 has no MIG: nvidia-smi says $now" "leave it out of sharing.mig, or share it by time-slicing or mps" ;;
    *) conclude failed "nvidia-smi cannot be asked for GPU $1: $now" "nvidia-smi has to work first; then run again" ;;
  esac
  : >"$GPUNODE_IN/.have"
  [ "$now" != Enabled ] || instances "$1" >"$GPUNODE_IN/.have"
  cut -d ' ' -f 2 "$GPUNODE_IN/.have" >"$GPUNODE_IN/.names"
  case $now:$next:$2 in
    Disabled:Enabled:on | Enabled:Disabled:off) echo "$1 $2" >>"$GPUNODE_IN/.work" && return ;; # told before: a reboot does it
    Disabled:*:off | Enabled:*:on) ;;
    *)
      used=$(holders "/dev/nvidia$(minor "$1")")
      [ -z "$used" ] || in_use "GPU $1 is used by $used: its MIG mode cannot be changed"
      { echo - && cat "$GPUNODE_IN/.names"; } >"$GPUNODE_IN/.gone"
      nobody_has "$1"
      changed gpu "$1" "GPU $1: MIG $2" ;;
  esac
  differ "$1"
  while read -r instance; do
    # shellcheck disable=SC2046 # paths
    used=$(holders $(capabilities "$1" "$instance"))
    [ -z "$used" ] || in_use "instance $instance of GPU $1 is used by $used"
  done <"$GPUNODE_IN/.surplus"
  awk 'FILENAME == ARGV[1] { gone[$1]; next } ($1 in gone) { print $2 }' "$GPUNODE_IN/.surplus" "$GPUNODE_IN/.have" >"$GPUNODE_IN/.gone"
  nobody_has "$1"
  echo "$1 $2" >>"$GPUNODE_IN/.work"
  [ -s "$GPUNODE_IN/.surplus" ] || { [ "$2" = on ] && [ -s "$GPUNODE_IN/.lacking" ]; } || return 0
  was=$(counted "$GPUNODE_IN/.names")
  wanted "$1" | sed 's|/.*||' >"$GPUNODE_IN/.names"
  changed gpu "$1" "GPU $1: $(counted "$GPUNODE_IN/.names") (was $was)"
}

in_use() {
  conclude refused "$1" "stop them (rollout.drain does on a Kubernetes node), then run again; nothing was changed"
}

# ---------------------------------------------------------------- doing it

# set_mode SLOT Enabled|Disabled: by nvidia-smi, and it is so at once
set_mode() {
  if [ "$2" = Enabled ]; then value=1; else value=0; fi
  said=$(smi_of "$1" -mig "$value")
  echo "$said" >>"$log"
  case $said in
    *'Unable to'* | *ermission*)
      conclude failed "MIG mode of GPU $1: $(echo "$said" | grep -v '^All done' | head -n 1)" "the driver may be too old for this GPU, or a hypervisor forbids it" ;;
  esac
  is_now "$@"
}

is_now() { [ "$(ask "$1" mig.mode.current)" = "$2" ]; }

# mode SLOT on|off: 1 when it needs a reboot
mode() {
  if [ "$2" = on ]; then want_=Enabled; else want_=Disabled; fi
  is_now "$1" "$want_" && [ "$(ask "$1" mig.mode.pending)" = "$want_" ] && return
  set_mode "$1" "$want_" && return
  # at boot only here: services that a controller's script starts wait for this one
  [ -z "$(word atboot)" ] || [ -n "${locked:-}" ] || { lock && locked=1; }
  # shellcheck disable=SC2046,SC2086 # words; of two services other GPUs have need
  pause gpunode-mps $(printf '%s\n' $GPU_UNITS | grep -vx -e nvidia-fabricmanager -e nvidia-imex)
  # Ampere takes the mode with a reset, and not every machine lets a single GPU be reset
  set_mode "$1" "$want_" || smi_of "$1" --gpu-reset >"$GPUNODE_IN/.reset"
  resume
  is_now "$1" "$want_" && return
  why=$(head -n 1 "$GPUNODE_IN/.reset")
  [ "$(ask "$1" mig.mode.pending)" = "$want_" ] || conclude failed "MIG of GPU $1 does not turn $2: $why" "nvidia-smi -mig on the node says why"
  reboot_reason="MIG of GPU $1 turns $2 with a reboot: $why"
  return 1
}

# destroy SLOT INSTANCE…: all of them or 1
destroy() {
  from=$1
  shift
  for instance in "$@"; do
    smi_of "$from" mig -gi "$instance" -dci >>"$log"
    smi_of "$from" mig -gi "$instance" -dgi >>"$log"
    ! smi_of "$from" mig -lgi | awk -v id="$instance" '$1 == "|" && $3 == "MIG" && $6 == id { found = 1 } END { exit !found }' || return 1
  done
}

# create SLOT TUPLE,TUPLE…
create() { attempt smi_of "$1" mig -cgi "$2" -C; }

# cut_ SLOT: the instances are those that are wanted; where that breaks off, those that were there before are made again
cut_() {
  instances "$1" >"$GPUNODE_IN/.have"
  differ "$1"
  [ -s "$GPUNODE_IN/.surplus" ] || [ -s "$GPUNODE_IN/.lacking" ] || return 0
  cp "$GPUNODE_IN/.have" "$GPUNODE_IN/.before"
  tuples=$(sort -t : -k 2n "$GPUNODE_IN/.lacking" | tr '\n' ',' | sed 's/,$//')
  # shellcheck disable=SC2046 # numbers
  { destroy "$1" $(cat "$GPUNODE_IN/.surplus") && { [ -z "$tuples" ] || create "$1" "$tuples"; } && whole "$1"; } && return
  reason=$(refusal)
  put_back "$1"
  conclude "$outcome" "GPU $1 could not be given the wanted MIG layout: ${reason:-nvidia-smi gives no reason}; $back" "gpunode sharing profiles says what fits; nvidia-smi mig -lgi on the node what is there"
}

# refusal: what nvidia-smi has said last of what it did not do
refusal() { grep -E '^(Unable|Failed|Invalid|Insufficient)' "$log" | tail -n 1; }

# whole SLOT: every instance that is wanted is there, with its compute instance
whole() {
  instances "$1" >"$GPUNODE_IN/.have"
  is_wanted "$1"
}

put_back() {
  instances "$1" >"$GPUNODE_IN/.have"
  new=$(awk 'FILENAME == ARGV[1] { old[$2 " " $3]; next } !($2 " " $3 in old) { print $1 }' "$GPUNODE_IN/.before" "$GPUNODE_IN/.have")
  # shellcheck disable=SC2086 # numbers
  destroy "$1" $new
  instances "$1" >"$GPUNODE_IN/.have"
  gone=$(awk 'FILENAME == ARGV[1] { now[$2 " " $3]; next } !($2 " " $3 in now) && $2 != "-" { print $2 ":" $3 }' "$GPUNODE_IN/.have" "$GPUNODE_IN/.before" | tr '\n' ',' | sed 's/,$//')
  if [ -z "$gone" ] || create "$1" "$gone"; then outcome=rolled_back back="its instances are as they were before"; else outcome=failed back="its former instances $gone could not be made again"; fi
}

# restart_plugins: what offers and labels GPUs sees how they are cut when it starts; the kubelet starts it again
restart_plugins() {
  [ -e "$CUT" ] || return 0
  for process in "${PROC:-/proc}"/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in
      nvidia-device-p | gpu-feature-dis) ! grep -qs kubepods "$process/cgroup" || kill "${process##*/}" 2>>"$log" ;;
    esac
  done
  rm -f "$CUT"
}

# ---------------------------------------------------------------- all of it

need_root
[ -n "$(word atboot)" ] || checking || lock
requested gpus >"$GPUNODE_IN/.layouts"
: >"$GPUNODE_IN/.work"
if ! gpus; then
  [ -n "$(word remove)" ] || say code not-yet
  [ -n "$(word remove)" ] || conclude refused "nvidia-smi does not answer: $(head -n 1 "$GPUNODE_IN/.gpus")" "gpunode provision installs and loads the driver"
  : >"$GPUNODE_IN/.layouts" # without a driver there is nothing to make whole
fi
while read -r slot layout _; do look "$slot" "$layout"; done <"$GPUNODE_IN/.layouts"
if [ ! -e "$GPUNODE_IN/changes" ]; then
  : # at boot and in an undo: the GPUs alone
elif [ -n "$(word remove)" ]; then
  not_at_boot "$UNIT"
else
  write_files
  ! requested changes | grep -q "/$UNIT$" || at_boot "$UNIT"
fi
if ! checking; then
  while read -r slot layout; do
    [ "$changes" = 0 ] || [ -n "$(word atboot)" ] ||
      prior mig "$slot" "$(mig_layout "$slot")" "$(requested gpus | sed -n "s|/[^ ]*||g; s/^$slot //p")"
    : >"$CUT"
    # shellcheck disable=SC2046 # numbers
    [ "$layout" = on ] || [ "$(ask "$slot" mig.mode.current)" != Enabled ] || destroy "$slot" $(instances "$slot" | cut -d ' ' -f 1) ||
      conclude failed "the instances of GPU $slot could not be destroyed: $(refusal)" "nvidia-smi mig -lgi on the node"
    mode "$slot" "$layout" || continue
    [ "$layout" = off ] || cut_ "$slot"
  done <"$GPUNODE_IN/.work"
fi
[ -z "$(word remove)" ] || write_files
[ -z "$(word remove)" ] || checking || rm -f "$LABELS" "$GPUNODE_STATE/mig"
say boot_id "$(boot_id)"
[ -z "$reboot_reason" ] || say reboot "$reboot_reason"
[ "$changes" = 0 ] || checking || [ -n "$(word atboot)" ] || journal activate 'done' ",\"changed\":$changes,\"reboot\":$(json_text "$reboot_reason")"
[ "$changes" != 0 ] || conclude unchanged "every GPU has the wanted MIG layout${reboot_reason:+, after a reboot}"
! checking || conclude changed "$changes change(s) would be made"
[ -z "$reboot_reason" ] || conclude changed "reboot needed: $reboot_reason"
[ -z "$(word remove)" ] || conclude changed "MIG is off, and nothing of it is left on the node"
conclude changed "every GPU has the wanted MIG layout, and will be at every boot"
