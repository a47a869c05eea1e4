#!/bin/sh
# GPU metrics as a text file for Prometheus' node_exporter: metrics FOLDER.  For hosts where no DCGM exporter runs.
#
# A timer runs it.  Every value is from nvidia-smi, the number of GPUs from PCI too: a lost one is in the difference.
# Xids are those of this boot's kernel log.  What a GPU does not have is left out; a broken driver is gpunode_driver_up 0.

set -u
LC_ALL=C PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
export LC_ALL PATH
FOLDER=${1:?folder of node_exporter\'s textfile collector}
PCI=${GPUNODE_PCI:-/sys/bus/pci/devices}
LOADED=${GPUNODE_LOADED:-/proc/driver/nvidia/version}
BASE=index,uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,clocks.sm,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total

# smi QUERY: nvidia-smi, where a driver is there to answer: started without one it makes device files all the same
smi() {
  [ -e "$LOADED" ] || [ -e /dev/dxg ] || return 9
  timeout 20 nvidia-smi "$1" --format=csv,noheader,nounits 2>/dev/null </dev/null
}

# named BASE FILE: the rows `UUID, …` of FILE, with the index and the name that the GPU has in BASE in front
named() {
  printf '%s\n' "$1" | awk -F ', *' 'FILENAME == "-" { head[$2] = $1 ", " $2 ", " $3; next } $1 in head { uuid = $1; sub(/^[^,]*/, ""); print head[uuid] $0 }' - "$2"
}

# prints metrics of one query: the fields of each from the 4th on are NAME:FACTOR:TYPE:HELP
metrics() {
  awk -F ', *' -v spec="$1" '
    BEGIN { n = split(spec, part, "|") }
    {
      uuid = $2; name = $3; gsub(/["\\]/, "", name); sub(/[ \t\r]+$/, "", $NF)
      label = "{gpu=\"" $1 "\",UUID=\"" uuid "\",name=\"" name "\"}"
      for (i = 1; i <= n; i++) {
        split(part[i], one, ":")
        value = $(i + 3)
        if (value == "Yes") value = 1 # 1 and 0 before driver 580
        if (value == "No") value = 0
        if (value ~ /^-?[0-9]+(\.[0-9]+)?$/) lines[i] = lines[i] one[1] label " " sprintf("%.12g", value * one[2]) "\n"
      }
    }
    END {
      for (i = 1; i <= n; i++) if (lines[i] != "") {
        split(part[i], one, ":")
        printf "# HELP %s %s\n# TYPE %s %s\n%s", one[1], one[4], one[1], one[3], lines[i]
      }
    }'
}

xids() {
  { journalctl -k -b -o cat --no-pager 2>/dev/null || dmesg 2>/dev/null; } |
    sed -n 's/.*NVRM: Xid (PCI:\([0-9a-fA-F:.]*\)[^)]*): *\([0-9][0-9]*\).*/\1 \2/p' | sort | uniq -c |
    awk '
      BEGIN { head = "# HELP gpunode_gpu_xid_total Xid errors in the kernel log of this boot.\n# TYPE gpunode_gpu_xid_total counter\n" }
      { printf "%sgpunode_gpu_xid_total{pci=\"%s\",xid=\"%s\"} %d\n", head, $2, $3, $1; head = "" }'
}

# 3D and VGA controllers of NVIDIA
pci() {
  count=0
  for device in "$PCI"/*; do
    [ -r "$device/vendor" ] || continue
    read -r vendor <"$device/vendor"
    read -r class <"$device/class"
    case $vendor:$class in 0x10de:0x0300* | 0x10de:0x0302*) count=$((count + 1)) ;; esac
  done
  echo "$count"
}

all() {
  base=$(smi --query-gpu="$BASE") && up=1 || up=0
  seen=0
  [ "$up" = 0 ] || seen=$(printf '%s\n' "$base" | grep -c ,)
  cat <<EOF
# HELP gpunode_driver_up Whether nvidia-smi answers.
# TYPE gpunode_driver_up gauge
gpunode_driver_up $up
# HELP gpunode_gpus GPUs that nvidia-smi shows.
# TYPE gpunode_gpus gauge
gpunode_gpus $seen
# HELP gpunode_gpus_pci GPUs of NVIDIA on PCI.
# TYPE gpunode_gpus_pci gauge
gpunode_gpus_pci $(pci)
EOF
  xids
  [ "$up" = 1 ] || return 0
  printf '%s\n' "$base" | metrics 'gpunode_gpu_utilization_ratio:0.01:gauge:Part of the time in which a kernel ran.|gpunode_gpu_memory_used_bytes:1048576:gauge:Memory in use.|gpunode_gpu_memory_total_bytes:1048576:gauge:Memory of the GPU.|gpunode_gpu_temperature_celsius:1:gauge:Temperature.|gpunode_gpu_power_watts:1:gauge:Power draw.|gpunode_gpu_sm_clock_hertz:1000000:gauge:Clock of the SMs.|gpunode_gpu_ecc_corrected_total:1:counter:Corrected memory errors since the driver was loaded.|gpunode_gpu_ecc_uncorrected_total:1:counter:Uncorrected memory errors since the driver was loaded.'
  # drivers before 450 do not know the question, and their GPUs remap no rows
  smi --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure >"$new.rows" || return 0
  named "$base" "$new.rows" | metrics 'gpunode_gpu_row_remap_pending:1:gauge:Whether rows wait for a reset to be remapped.|gpunode_gpu_row_remap_failed:1:gauge:Whether remapping of rows has failed.'
}

new=$FOLDER/.gpunode.prom.$$
trap 'rm -f "$new" "$new.rows"' EXIT
trap 'exit 1' HUP INT TERM
umask 022
all >"$new" && mv "$new" "$FOLDER/gpunode.prom"
