# shellcheck shell=sh
# GPUs and their MIG instances, as nvidia-smi shows them; .gpus has its lines INDEX, BUS ID.  Behind common.sh, before mig.sh,
# mps.sh and read_journal.sh.

smi() { nvidia-smi "$@" 2>&1 </dev/null 9>&-; }

# number SLOT: as nvidia-smi counts GPUs, whose bus ids have longer domains
number() { awk -F ', ' -v slot="$1" 'BEGIN { while (length(slot) < 16) slot = "0" slot } tolower($2) == slot { print $1 }' "$GPUNODE_IN/.gpus"; }

# smi_of SLOT [mig] OPTION…: nvidia-smi, of that GPU alone
smi_of() {
  gpu=$(number "$1")
  shift
  case $1 in
    mig) shift && smi mig -i "$gpu" "$@" ;;
    *) smi -i "$gpu" "$@" ;;
  esac
}

# ask SLOT FIELD
ask() { smi_of "$1" --query-gpu="$2" --format=csv,noheader | head -n 1; }

gpus() { { have nvidia-smi && smi --query-gpu=index,pci.bus_id --format=csv,noheader; } >"$GPUNODE_IN/.gpus"; }

# cuts SLOT: lines `INSTANCE PROFILE START COMPUTE,COMPUTE`, the profiles of its compute instances, - without any
cuts() {
  smi_of "$1" mig -lci | awk '$1 == "|" && $2 ~ /^[0-9]+$/ && $4 == "MIG" { print $3, $5 }' >"$GPUNODE_IN/.computes"
  smi_of "$1" mig -lgi | awk 'FILENAME == ARGV[1] { has[$1] = has[$1] "," $2; next }
    $1 == "|" && $2 ~ /^[0-9]+$/ && $3 == "MIG" && split($7, at, ":") == 2 { print $6, $4, at[1], (($6 in has) ? substr(has[$6], 2) : "-") }' "$GPUNODE_IN/.computes" -
}

# mig_layout SLOT: `off`, or `on` and of each instance PROFILE:START, with /COMPUTE,… where those are not one of its size
mig_layout() {
  case $(ask "$1" mig.mode.current) in Enabled) ;; *) echo off && return ;; esac
  echo on "$(cuts "$1" | sort -k 3n | awk '{ printf "%s%s:%s%s", (NR > 1 ? " " : ""), $2, $3, ($4 == $2 ? "" : "/" $4) }')" | sed 's/ $//'
}
