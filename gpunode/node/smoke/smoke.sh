#!/bin/sh
# Use the GPU for real: the driver, CUDA's compiler, the container toolkit, and containers that the engines start
# through the nvidia runtime.  Leaves nothing behind: own names, removed at the end, and at the start what a killed run left.
# Request and output: core/items/smoke.py.  Runs behind common.sh.

NVIDIA_RUNTIME=$(command -v nvidia-container-runtime || echo "$NVIDIA_RUNTIME")
OWN_IMAGE=localhost/gpunode-smoke:1
NAME=gpunode-smoke
# What is asked of every GPU: one that cannot answer says so in place of the value, and nvidia-smi ends with 0 (core/facts/driver.py)
ASKED=index,temperature.gpu,utilization.gpu,memory.used
# Inside the container: what nvidia-smi says and how it ends, and the device files.  The last line proves that all was
# said: a kubelet may kill the container in the middle of it.
# shellcheck disable=SC2016  # for the container's shell
INSIDE='if command -v nvidia-smi >/dev/null; then nvidia-smi -L 2>&1; echo "gpunode-smoke-list $?"; nvidia-smi --query-gpu='$ASKED' --format=csv,noheader 2>&1; echo "gpunode-smoke-query $?"; fi; for d in /dev/nvidia[0-9]*; do [ ! -e "$d" ] || echo "gpunode-smoke-device $d"; done; echo gpunode-smoke-ran; exit 0'
# What NVIDIA's runtime brings into a container (nvidia-container-toolkit pkg/nvcdi/driver-nvml.go, newDriverBinariesDiscoverer)
MOUNTED="nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-imex nvidia-imex-ctl"
# shellcheck disable=SC2154 # cuda.py, put before this
CUDA_NEEDS='import base64, ctypes, os, signal, sys, time' CUDA="import base64; exec(base64.b64decode('$CUDA_PROGRAM'))"
# Without python3 NVIDIA's sample does it, where it is: $1 is the program, $2 the devices; prints what cuda.py prints
# (the CRI gets it as one line)
# shellcheck disable=SC2016  # for a shell of its own
CUDA_SAMPLE='n=0 bad= word=full IFS=";"; for one in $2; do said=$(CUDA_VISIBLE_DEVICES=${one#*=} "$1" 2>&1);
  case $said in *"Test PASSED"*) n=$((n + 1)) && continue ;; *"error code "*) said=${said#*error code } said=${said%%)*} ;; *) said="no result, or a wrong one" ;; esac;
  case $word$said in *"out of memory"*) ;; none* | *insufficient* | *"no kernel image"*) word=none ;; *) word=failed ;; esac;
  bad="$bad${bad:+; }${one%%=*}: vectorAdd: $said"; done; echo "gpunode-smoke-cuda:${bad:+$word }${bad:-passed $n}"'
CONTAINER_SAMPLE=/cuda-samples/vectorAdd # nvcr.io/nvidia/k8s/cuda-sample
BY_MOUNT=/var/run/nvidia-container-devices

# check ID STATUS MESSAGE [FIX]
check() { say check "$1|$2|$(printf '%s' "$3" | tr '|' '/')|$(printf '%s' "${4:-}" | tr '|' '/')"; }

# bounded SECONDS COMMAND…: its output and errors together, never longer than that
bounded() {
  local ended
  run_with_timeout "$@" 2>&1 </dev/null 9>&-
  ended=$?
  [ "$ended" != 124 ] && [ "$ended" != 143 ] || echo "no answer within $1 seconds"
  return "$ended"
}

last_line() { printf '%s\n' "$1" | grep -v '^ *$' | tail -n 1 | cut -c 1-400; }

# in_full TEXT: its lines as one
in_full() { printf '%s\n' "$1" | grep -v '^ *$' | tr '\n' ' ' | sed 's/ *$//' | cut -c 1-400; }

# log_of ENGINE: what shows its log
log_of() {
  local shown
  shown=$(word "log_$1")
  echo "${shown:-journalctl -u $1}"
}

# ---------------------------------------------------------------- driver, CUDA, toolkit, DCGM

# gpus_text: «the GPU», «all 8 GPUs»
gpus_text() { if [ "$gpus" = 1 ]; then echo "the GPU"; else echo "all $gpus GPUs"; fi; }

# faults ANSWERS: «GPU 0: GPU requires reset, GPU 3: …» of the GPUs that did not answer what was ASKED; empty where all did
faults() {
  printf '%s\n' "$1" | awk -F ', *' '
    /^[0-9]+, / {
      word = ""
      for (n = NF; n > 1; n--) {
        value = $n
        if (value !~ /^\[.*\]$/ && value !~ /ERR!|Error|lost|reset/) continue
        gsub(/^\[|\]$/, "", value)
        if (value !~ /^(N\/A|Not Supported|Not Found|Function Not Found|Insufficient Permissions|Requested functionality has been deprecated)$/) word = value
      }
      if (word != "") printf "%sGPU %s: %s", (said++ ? ", " : ""), $1, word
    }'
}

# fault_fix TEXT: what is done about what a GPU or nvidia-smi said
fault_fix() {
  case $1 in
    *'requires reset'*) echo "stop what uses the GPU, then nvidia-smi --gpu-reset -i N; or reboot" ;;
    *lost*) echo "the GPU fell off the bus: reboot; if it comes back, look at power, heat and slot (dmesg has NVRM and Xid lines)" ;;
    *) echo "dmesg on the node shows NVRM and Xid lines" ;;
  esac
}

driver_check() {
  local out seen
  [ "$gpus" -gt 0 ] || return 0
  have nvidia-smi || { check driver.smi failed "nvidia-smi is not installed" "gpunode provision"; return; }
  out=$(bounded 60 nvidia-smi -L) || { check driver.smi failed "nvidia-smi fails: $(in_full "$out")" "$(fault_fix "$out")"; return; }
  seen=$(printf '%s\n' "$out" | grep -c '^GPU ')
  if [ "$seen" != "$gpus" ]; then
    check driver.smi failed "nvidia-smi sees $seen GPUs, and PCI has $gpus" "see dmesg for NVRM and Xid lines; reseat or replace a GPU that fell off the bus"
    return
  fi
  out=$(bounded 60 nvidia-smi --query-gpu="$ASKED" --format=csv,noheader)
  judge_query driver.smi "$out" "$?" "nvidia-smi lists $(gpus_text), and" "nvidia-smi sees $(gpus_text) on PCI"
}

# judge_query ID ANSWERS STATUS LISTED PASSED [PROGRAM]: how nvidia-smi answered what was ASKED of the GPUs, and ended
judge_query() {
  local wrong
  wrong=$(faults "$2")
  if [ -n "$wrong" ]; then
    check "$1" failed "$4 cannot ask: $wrong" "$(fault_fix "$wrong")"
  elif [ "$3" != 0 ] || [ "$(printf '%s\n' "$2" | grep -c '^[0-9][0-9]*, ')" != "$gpus" ]; then
    check "$1" failed "$4 ${6:+$6 }fails when it asks them (exit status $3): $(in_full "$2")" "$(fault_fix "$2")"
  else
    check "$1" passed "$5"
  fi
}

cuda_check() {
  local wanted nvcc path out
  for wanted in $(requested cuda); do
    nvcc=
    for path in "/usr/local/cuda-$wanted/bin/nvcc" /opt/cuda/bin/nvcc; do [ ! -x "$path" ] || { nvcc=$path && break; }; done
    [ -n "$nvcc" ] || { check "cuda.nvcc-$wanted" failed "there is no nvcc of CUDA $wanted" "gpunode provision"; continue; }
    out=$(bounded 60 "$nvcc" --version)
    [ "$wanted" != newest ] || case $out in *'release '*) check "cuda.nvcc-$wanted" passed "$nvcc says $(printf '%s\n' "$out" | grep -o 'release [0-9.]*')" && continue ;; esac
    case $out in
      *"release $wanted,"*) check "cuda.nvcc-$wanted" passed "$nvcc says release $wanted" ;;
      *) check "cuda.nvcc-$wanted" failed "$nvcc does not say release $wanted: $(last_line "$out")" "reinstall CUDA $wanted" ;;
    esac
  done
}

# without_driver ID: whether this node has none to prove it with; the check says so
without_driver() {
  [ "$gpus" = 0 ] && [ ! -e /sys/module/nvidia ] &&
    check "$1" not-proven "no driver is loaded, and none is asked for (driver.branch none)" "gpunode verify again when there is one"
}

toolkit_check() {
  local out
  [ -n "$(requested toolkit)" ] || return 0
  have nvidia-container-cli || { check toolkit.cli failed "nvidia-container-cli is not installed" "gpunode provision"; return; }
  if out=$(bounded 60 nvidia-container-cli --load-kmods info); then
    check toolkit.cli passed "nvidia-container-cli finds the driver: $(printf '%s\n' "$out" | grep -i 'NVRM version' | tr -s ' ')"
  elif ! without_driver toolkit.cli; then
    check toolkit.cli failed "nvidia-container-cli fails: $(last_line "$out")" "load the driver first (nvidia-smi has to work)"
  fi
}

# It goes by the status and by the table: a status of every release that a failed test would end with was not seen.
dcgm_check() {
  local out
  [ "$gpus" -gt 0 ] && have dcgmi || return 0
  set -- dcgm.diag "dcgmi diag -r 1 on the node shows the whole report"
  if ! out=$(bounded 180 dcgmi diag -r 1) || printf '%s\n' "$out" | grep -qE '[|:] Fail( |$)'; then
    check "$1" failed "dcgmi diag -r 1: $(printf '%s\n' "$out" | grep -iE 'fail|error' | head -n 1 | tr -s ' ' | cut -c 1-300)" "$2"
  elif printf '%s\n' "$out" | grep -qE '[|:] Pass( |$)'; then
    check "$1" passed "dcgmi diag -r 1 passed"
  else
    check "$1" not-proven "dcgmi diag -r 1 has tested nothing: $(last_line "$out")" "$2"
  fi
}

# python_path: of a python3 that can load libcuda; RHEL 8 has one of its own alone.  Nothing where there is none.
python_path() {
  local name
  for name in python3 /usr/libexec/platform-python; do
    "$name" -I -S -c 'import ctypes, sys; print(sys.executable)' 2>/dev/null && return
  done
}

# cuda_devices LIST MODES BUSY: lines `use NAME=UUID` of GPUs, or of their MIG devices, that CUDA may be started on, the
# same with `shared` where several programs may, and `out NAME: why` of the others, which an own context would disturb
cuda_devices() {
  {
    printf '%s\n' "$2" | sed 's/^/mode /'
    printf '%s\n' "$3" | sed 's/^/busy /'
    printf '%s\n' "$1"
  } | awk '
    function uuid() { sub(/.*UUID: /, ""); sub(/\).*/, ""); return $0 }
    function flush(n) {
      if (gpu != "" && mode[id] ~ /^Prohibited/) print "out " gpu ": its compute mode is Prohibited"
      else if (gpu != "" && mode[id] !~ /^Default/ && (id in busy || "unknown" in busy)) print "out " gpu ": in use, and its compute mode is " mode[id]
      else for (n = 1; n <= devices; n++) { print "use " device[n]; if (mode[id] ~ /^Default/) print "shared " device[n] }
    }
    $1 == "mode" { sub(/,$/, "", $2); mode[$2] = $3; next }
    $1 == "busy" { busy[$2] = 1; next }
    /^GPU [0-9]+: .*UUID: / { flush(); gpu = $1 " " $2 + 0; id = uuid(); devices = 1; device[1] = gpu "=" id; mig = 0; next }
    /^ +MIG .*UUID: / { if (!mig) devices = 0; mig = 1; name = gpu " " $1 " " $2 " " $4 + 0; device[++devices] = name "=" uuid() }
    END { flush() }'
}

# cuda_init_check: CUDA itself, which nvidia-smi does not need; in containers, too, where it works here
cuda_init_check() {
  local list modes busy found devices left_out out sample path
  [ "$gpus" -gt 0 ] && have nvidia-smi || return 0
  if ! list=$(bounded 60 nvidia-smi -L) || ! modes=$(bounded 60 nvidia-smi --query-gpu=uuid,compute_mode --format=csv,noheader); then
    check cuda.init not-proven "nvidia-smi does not say which GPUs CUDA may be started on" "nvidia-smi has to work first"
    return
  fi
  busy=$(bounded 60 nvidia-smi --query-compute-apps=gpu_uuid --format=csv,noheader) || busy=unknown
  found=$(cuda_devices "$list" "$modes" "$busy")
  devices=$(printf '%s\n' "$found" | sed -n 's/^use //p' | tr '\n' ';')
  left_out=$(printf '%s\n' "$found" | sed -n 's/^out //p' | tr '\n' ';')
  python=$(python_path)
  if [ -z "$devices" ]; then
    check cuda.init not-proven "CUDA was not started: ${left_out:-nvidia-smi -L lists no GPU}" "verify again when they are free; nvidia-smi -c DEFAULT allows several programs"
    return
  fi
  sample=
  for path in /usr/local/cuda*/extras/demo_suite/vectorAdd /opt/cuda/extras/demo_suite/vectorAdd; do [ ! -x "$path" ] || sample=$path; done
  if [ -n "$python" ]; then
    out=$(bounded 150 "$python" -I -S -c "$CUDA" "${devices%;}" | tail -n 1)
  elif [ -n "$sample" ]; then
    out=$(bounded 150 sh -c "$CUDA_SAMPLE" sh "$sample" "${devices%;}" | tail -n 1)
  else
    check cuda.init not-proven "CUDA was not started: no python3 with ctypes is on the node, which would load libcuda, and no vectorAdd of CUDA's demo suite" "install python3"
    return
  fi
  case $out in
    'gpunode-smoke-cuda:passed '*) ;;
    'gpunode-smoke-cuda:failed '*) check cuda.init failed "CUDA fails: ${out#gpunode-smoke-cuda:failed }" && return ;;
    'gpunode-smoke-cuda:full '*) check cuda.init not-proven "no memory is free: ${out#gpunode-smoke-cuda:full }" "verify again when the GPUs are free" && return ;;
    *) check cuda.init not-proven "CUDA was not started: $(last_line "${out#*cuda:none }")" "${python:-$sample} has to work there" && return ;;
  esac
  if [ -z "$left_out" ]; then
    check cuda.init passed "CUDA starts and computes right (GPUs and MIG devices: ${out##* })"
  else
    check cuda.init not-proven "CUDA computes right (GPUs and MIG devices: ${out##* }), and was not started on others: $left_out" "verify again when they are free"
  fi
  # engines are tried at the same time, so only where several programs may have a GPU
  devices=$(printf '%s\n' "$found" | sed -n 's/^shared //p' | tr '\n' ';')
  [ -z "$devices" ] || INSIDE="${INSIDE%echo gpunode-smoke-ran*}set -- $CONTAINER_SAMPLE '${devices%;}'; p=\$(command -v ${python:-python3} || command -v python3) && \$p -I -S -c \"$CUDA\" \"\$2\" 2>&1 || if [ -x \$1 ]; then $CUDA_SAMPLE; else echo gpunode-smoke-cuda:none; fi; echo gpunode-smoke-ran; exit 0"
}

# ---------------------------------------------------------------- the image

# python_files: what python3 is made of, as far as CUDA's program uses it
python_files() {
  [ -z "$python" ] || "$python" -I -S -c "$CUDA_NEEDS
for module in list(sys.modules.values()): print(getattr(module, '__file__', None) or '')
print(sys.executable)" 2>/dev/null | grep '^/'
}

# own_libraries: the libraries that /bin/sh and what NVIDIA's runtime mounts have from the system, one a line.  The driver's
# own come with the mounts; those of this list come with no driver, so that without them nvidia-smi cannot start.
own_libraries() (
  PATH=$PATH:/usr/sbin:/sbin
  # shellcheck disable=SC2046 # words
  set -- /bin/sh $(python_files) $(for name in $MOUNTED; do command -v "$name"; done) \
    $(ldconfig -p 2>/dev/null | sed -n 's/.*lib\(nvidia-ml\|nvidia-cfg\|cuda\)\.so\.1 .*=> //p')
  for program; do ldd "$program" 2>/dev/null | grep -o '/[^ ]*'; done | grep -vE '/lib(nvidia|cuda|nvcuvid|nvoptix)[^/]*$' | sort -u
)

# A docker-archive of the node's own /bin/sh and libraries: nothing to download, right for every architecture.
own_image() {
  local dir library sum arch
  dir=$GPUNODE_IN/image
  mkdir -p "$dir/root/bin" "$dir/root/proc" "$dir/root/dev" "$dir/root/sys" "$dir/root/etc" "$dir/root/tmp"
  cp -L /bin/sh "$dir/root/bin/sh"
  for library in $(own_libraries) $(python_files); do
    [ -f "$library" ] || continue
    mkdir -p "$dir/root${library%/*}"
    cp -L "$library" "$dir/root$library"
  done
  find "$dir/root" -type d -exec chmod 755 {} +
  find "$dir/root" -type f -exec chmod 755 {} +
  tar -C "$dir/root" -cf "$dir/layer.tar" .
  sum=$(sha256sum "$dir/layer.tar")
  case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
  printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/bin/sh"],"Env":["PATH=/usr/bin:/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$arch" "${sum%% *}" >"$dir/config.json"
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$OWN_IMAGE" >"$dir/manifest.json"
  tar -C "$dir" -cf "$GPUNODE_IN/image.tar" manifest.json config.json layer.tar
  rm -rf "$dir"
}

# ---------------------------------------------------------------- what a container printed

# toolkit_says KEY DEFAULT: a setting above the first table of the toolkit's configuration
toolkit_says() {
  local stated
  stated=$(sed -n '/^[[:space:]]*\[/q; s/^[[:space:]]*'"$1"'[[:space:]]*=[[:space:]]*\([a-z]*\).*/\1/p' "$TOOLKIT_CONFIG" 2>/dev/null | tail -n 1)
  echo "${stated:-$2}"
}

# how_to_ask: how an unprivileged container gets GPUs by the toolkit's configuration: env, mount, or none
how_to_ask() {
  if [ "$(toolkit_says accept-nvidia-visible-devices-envvar-when-unprivileged true)" = true ]; then
    echo env
  elif [ "$(toolkit_says accept-nvidia-visible-devices-as-volume-mounts false)" = true ]; then
    echo mount
  else
    echo none
  fi
}

# judge ID TEXT WHO [RUNTIME]: the container ran; how many GPUs did it see?  runc gives it none.
judge() {
  local files list ended
  case $2 in
    *gpunode-smoke-ran*) ;;
    # NVIDIA's hook in the modes cdi and jit-cdi: a choice of the toolkit's configuration, no fault
    *'invoking the NVIDIA Container Runtime Hook directly'*) check "$1" not-proven "$3: $(last_line "$2")" "containers get GPUs by --runtime=nvidia or --device nvidia.com/gpu=all; --gpus needs nvidia-container-runtime.mode auto or legacy in $TOOLKIT_CONFIG" && return 1 ;;
    *) check "$1" failed "$3 could not start a container: $(last_line "$2")" "$(log_of "${1%%.*}"), on the node" && return 1 ;;
  esac
  check "$1" passed "$3 ran a container"
  files=$(printf '%s\n' "$2" | sed -n 's/^gpunode-smoke-device //p' | tr '\n' ' ')
  list=$(printf '%s\n' "$2" | sed '/^gpunode-smoke-/,$d')
  ended=$(printf '%s\n' "$2" | sed -n 's/^gpunode-smoke-list //p')
  case ${4:-}$files$(printf '%s\n' "$list" | grep '^GPU ') in runc) return 0 ;; esac
  [ "$gpus" -gt 0 ] || return 0
  case $ended in
    '') judge_files "$1" "no nvidia-smi is in the container" ;;
    0) judge_answers "$1" "$2" && judge_cuda "$1" "$2" ;;
    126 | 127) judge_files "$1" "nvidia-smi cannot start in the container (exit status $ended): $(in_full "$list")" ;;
    *) check "$1.gpus" failed "nvidia-smi fails in the container (exit status $ended): $(in_full "$list")" "$(fault_fix "$list")" ;;
  esac
}

# judge_files ID WHY: nvidia-smi could not be asked; the device files are all that is known
judge_files() {
  local id why
  # shellcheck disable=SC2086 # words
  set -- "$1" "$2" $files
  id=$1 why=$2
  shift 2
  if [ "$#" = 0 ] && [ "$(how_to_ask)" = none ]; then
    check "$id.gpus" not-proven "$why, and no /dev/nvidiaN: by $TOOLKIT_CONFIG an unprivileged container gets GPUs neither by NVIDIA_VISIBLE_DEVICES (accept-nvidia-visible-devices-envvar-when-unprivileged = false) nor by mounts (accept-nvidia-visible-devices-as-volume-mounts)" \
      "it may get them by CDI (--device nvidia.com/gpu=…); accept-nvidia-visible-devices-as-volume-mounts = true lets gpunode prove it"
  elif [ "$#" = "$gpus" ]; then
    check "$id.gpus" not-proven "$why; it has the device files of $(gpus_text) ($*), which proves no more than that they are there" \
      "the image has to have the C library that nvidia-smi needs: leave verify.image empty"
  else
    check "$id.gpus" failed "$why, and it has $# device files of GPUs (${*:-no /dev/nvidiaN}); the node has $gpus" "does the engine start $NVIDIA_RUNTIME?  Its own log: $TOOLKIT_CONFIG, debug"
  fi
}

# judge_answers ID TEXT: nvidia-smi listed GPUs; do all of them answer?
judge_answers() {
  local seen answers ended
  seen=$(printf '%s\n' "$list" | grep -c '^GPU ')
  answers=$(printf '%s\n' "$2" | sed '1,/^gpunode-smoke-list /d; /^gpunode-smoke-/,$d')
  ended=$(printf '%s\n' "$2" | sed -n 's/^gpunode-smoke-query //p')
  if [ "$seen" != "$gpus" ]; then
    check "$1.gpus" failed "the container sees $seen GPUs, the node has $gpus; nvidia-smi says: $(in_full "$list")" "nvidia-container-cli list on the node"
  else
    judge_query "$1.gpus" "$answers" "$ended" "the container sees $(gpus_text), and" "the container sees $(gpus_text)" nvidia-smi
  fi
}

# judge_cuda ID TEXT: CUDA, where it was started on the node, too
judge_cuda() {
  local said
  said=$(printf '%s\n' "$2" | sed -n 's/^gpunode-smoke-cuda://p' | tail -n 1)
  case $said in
    '') ;;
    none*) check "$1.cuda" not-proven "no python3 runs in the container, by which CUDA would be started, and no $CONTAINER_SAMPLE${said#none}" "leave verify.image empty, or name one that has either" ;;
    'passed '*) check "$1.cuda" passed "CUDA starts and computes right in the container" ;;
    'full '*) check "$1.cuda" not-proven "no memory is free: ${said#full }" "verify again when the GPUs are free" ;;
    *) check "$1.cuda" failed "CUDA fails in the container, and works on the node: ${said#failed }" ;;
  esac
}

# runc_or BINARY: runc for any runc, else the binary
runc_or() { case ${1##*/} in runc*) echo runc ;; *) echo "$1" ;; esac; }

# ---------------------------------------------------------------- containerd

SOCKET=$(word socket)
SOCKET=${SOCKET:-/run/containerd/containerd.sock}
ctr_() { bounded 60 ctr --address "$SOCKET" -n "$@"; }

containerd_checks() {
  local fetched out
  have ctr || { check containerd.binary not-proven "ctr is not on the node" "install containerd's client"; return; }
  if fetched=$(containerd_image "$NAME"); then
    set --
    [ "$(how_to_ask)" != mount ] || set -- --mount "type=bind,src=/dev/null,dst=$BY_MOUNT/all,options=rbind:ro"
    out=$(ctr_ "$NAME" run --rm --runc-binary "$NVIDIA_RUNTIME" --env NVIDIA_VISIBLE_DEVICES=all \
      --env NVIDIA_DRIVER_CAPABILITIES=compute,utility "$@" "$image" "$NAME" /bin/sh -c "$INSIDE")
    judge containerd.binary "$out" "containerd with $NVIDIA_RUNTIME"
  else
    check containerd.binary failed "containerd cannot have the image $image: $(last_line "$fetched")" "set verify.image to one that the node can pull"
  fi
  if have crictl; then
    containerd_image k8s.io >/dev/null
    cri_check nvidia nvidia
    cri_check default "$(word default_containerd)"
  else
    check containerd.cri-nvidia not-proven "crictl is not on the node: no pod was started by the handler nvidia" "install cri-tools"
    check containerd.cri-default not-proven "crictl is not on the node: no pod was started by the default handler" "install cri-tools"
  fi
}

containerd_clean() {
  local left
  have ctr && ctr_ "$NAME" version || return 0
  ctr_ "$NAME" tasks kill -s KILL "$NAME"
  ctr_ "$NAME" tasks rm -f "$NAME"
  for left in $(bounded 20 ctr --address "$SOCKET" -n "$NAME" containers ls -q); do ctr_ "$NAME" containers rm "$left"; done
  for left in $(bounded 20 ctr --address "$SOCKET" -n "$NAME" images ls -q); do ctr_ "$NAME" images rm --sync "$left"; done
  for left in $(bounded 20 ctr --address "$SOCKET" -n "$NAME" snapshots ls | awk 'NR > 1 { print $1 }'); do ctr_ "$NAME" snapshots rm "$left"; done
  ctr_ "$NAME" namespaces rm "$NAME"
  have crictl || return 0
  for left in $(cri_ pods -q --label gpunode=smoke | grep -E '^[0-9a-f]{12,}$'); do cri_ rmp -f "$left"; done
  ctr_ k8s.io images rm --sync "$OWN_IMAGE"
}

containerd_image() {
  if [ "$image" = "$OWN_IMAGE" ]; then
    ctr_ "$1" images import "$GPUNODE_IN/image.tar"
  else
    ctr_ "$1" images ls -q | grep -Fqx "$image" || bounded 300 ctr --address "$SOCKET" -n "$1" images pull "$image"
  fi
}

# crictl's own limit is 2 seconds (twice that for a sandbox), in which the image of sandboxes may not be fetched
cri_() { bounded 60 crictl --timeout 25s --runtime-endpoint "unix://$SOCKET" --image-endpoint "unix://$SOCKET" "$@"; }

CRI_ATTEMPTS=6

# cri_check HANDLER EXPECTED: a pod of the handler nvidia, or of the default one, which has to be EXPECTED (nvidia or runc; empty: any).
# A running kubelet removes every pod that it does not know, within seconds.  There is no way to hide one from it: it lists
# all pods of the CRI, whatever their labels are.  So a pod that was taken away is tried again, and proves nothing.
cri_check() {
  local try said
  try=1
  until cri_attempt "$1" "$2" "$try"; do
    [ "$try" -lt "$CRI_ATTEMPTS" ] || {
      check "containerd.cri-$1" not-proven "the pod of this check was removed $CRI_ATTEMPTS times before it had ended, as a kubelet does with pods that it did not create; the last one said: $(last_line "$said")" \
        "gpunode kube verify proves it with a pod of the cluster; or run verify again"
      return
    }
    try=$((try + 1))
    sleep 1
  done
}

# no_sandbox ID ERROR: without the image of sandboxes, which the engine would fetch, nothing is said about the runtime.  An
# engine that does not answer does not say that it lacks the image.
no_sandbox() {
  local wanted known
  wanted='' known=''
  case $2 in
    *'failed to get sandbox image'*) wanted=$(printf '%s\n' "$2" | sed -n 's/.*failed to get sandbox image [\]*"\([^"\]*\).*/\1/p' | tail -n 1) ;;
    *'deadline exceeded'* | *DeadlineExceeded* | *'no answer within'*)
      wanted=$(containerd config dump 2>/dev/null | sed -n "s/^ *sandbox\(_image\)\{0,1\} = ['\"]\(.*\)['\"]\$/\2/p" | head -n 1) ;;
  esac
  [ -z "$wanted" ] || known=$(cri_ inspecti "$wanted")
  case $known in *'no such image'*) known=none ;; esac
  if [ "$known" = none ]; then
    check "$1" not-proven "no pod could be started: the image of pod sandboxes, $wanted, is not on the node and could not be fetched: $(last_line "$2")" \
      "let the node reach its registry, or bring it: ctr -n k8s.io images import FILE"
  else
    check "$1" failed "no pod sandbox: $(last_line "$2")" "$(log_of containerd), on the node"
  fi
}

# cri_attempt HANDLER EXPECTED NUMBER: 1 when the pod was taken away, its last words in $said; else the check is made
cri_attempt() {
  local id handler logs pod ended
  id=containerd.cri-$1
  handler=
  [ "$1" = default ] || handler=--runtime=$1
  logs=$GPUNODE_IN/logs-$1-$3
  mkdir -p "$logs"
  # the host's network: no CNI is needed, which a fresh node does not have
  printf '{"metadata":{"name":"%s","namespace":"default","uid":"%s-%s","attempt":1},"log_directory":"%s","labels":{"gpunode":"smoke"},"linux":{%s"security_context":{"namespace_options":{"network":2}}}}' \
    "$NAME-$1" "$NAME" "$1-$$-$3" "$logs" "$(cgroup_parent)" >"$GPUNODE_IN/pod.json"
  printf '{"metadata":{"name":"%s"},"image":{"image":"%s"},"command":["/bin/sh","-c",%s],"envs":[{"key":"NVIDIA_VISIBLE_DEVICES","value":"all"},{"key":"NVIDIA_DRIVER_CAPABILITIES","value":"compute,utility"}],"mounts":[%s],"log_path":"out.log","linux":{}}' \
    "$NAME" "$image" "$(json_text "$INSIDE")" "$(cri_mounts)" >"$GPUNODE_IN/container.json"
  # shellcheck disable=SC2086  # no word at all for the default handler
  pod=$(cri_ runp $handler "$GPUNODE_IN/pod.json") ||
    { no_sandbox "$id" "$pod"; return 0; }
  pod=$(last_line "$pod")
  cri_container "$1" "$2"
  ended=$?
  cri_ rmp -f "$pod" >/dev/null
  return "$ended"
}

# cri_mounts: where the toolkit's configuration takes no variables, what asks for the GPUs
cri_mounts() { [ "$(how_to_ask)" != mount ] || printf '{"container_path":"%s/all","host_path":"/dev/null","readonly":true}' "$BY_MOUNT"; }

# cri_container HANDLER EXPECTED: the container in the pod of cri_attempt, what is said of it in $said
cri_container() {
  local container binary out
  cri_start || {
    ! cri_taken_away || return 1
    check "$id" failed "no container in the pod: $(last_line "$said")" "$(log_of containerd), on the node"
    return 0
  }
  said=$(cri_ inspectp "$pod") || ! cri_taken_away || return 1
  # containerd 1.6 spells it binary_name
  binary=$(printf '%s\n' "$said" | sed -n 's/.*"BinaryName": *"\([^"]*\)".*/\1/p; s/.*"binary_name": *"\([^"]*\)".*/\1/p' | head -n 1)
  said=$(cri_wait "$container")
  out=$(cut -d ' ' -f 4- "$logs/out.log" 2>/dev/null)
  case $out in
    *gpunode-smoke-ran*) ;;
    *) ! cri_taken_away || return 1 ;;
  esac
  case "$2 ${binary:-runc}" in
    "nvidia "*nvidia* | "runc "*runc* | " "*) judge "$id" "${out:-$said}" "the CRI ($1 handler, ${binary:-runc})" "$(runc_or "${binary:-runc}")" ;;
    *) check "$id" failed "the $1 handler uses ${binary:-the default binary}, not $2" "gpunode provision rewrites containerd's configuration" ;;
  esac
  return 0
}

# cri_start: $container in $pod
cri_start() {
  said=$(cri_ create "$pod" "$GPUNODE_IN/container.json" "$GPUNODE_IN/pod.json") || return 1
  container=$(last_line "$said")
  said=$(cri_ start "$container")
}

# cri_taken_away: whether the pod of cri_attempt, of which $said was said, was removed by somebody else.  A pod
# that is not ready, and still there, is one that a kubelet is about to remove; without a kubelet it ended by itself.
cri_taken_away() {
  local left state
  case $said in
    # what is heard of a pod whose processes are killed already, while it still counts as ready
    *'has stopped'* | *'already dead'* | *'not running'* | *'in CONTAINER_EXITED'* | *'was killed'* | *'namespace path'* | *'no running task'* | *'ttrpc: closed'*) left=3 ;;
    *) if kubelet_runs; then left=1; else left=0; fi ;;
  esac
  while :; do
    if state=$(cri_ inspectp "$pod"); then
      case $state in *SANDBOX_NOTREADY*) ! kubelet_runs || return 0 ;; esac
    else
      case $state in *NotFound* | *'not found'*) return 0 ;; esac
    fi
    [ "$left" -gt 0 ] || return 1
    left=$((left - 1))
    sleep 1
  done
}

# of k3s and MicroK8s it is a part of another program
kubelet_runs() { cat /proc/[0-9]*/comm 2>/dev/null | grep -qE '^(kubelet|kubelite|k3s.*)$'; }

# cgroup_parent: as the kubelet does, a slice under the systemd driver, which takes nothing else; the other takes no slice
# containerd takes keys in any case and repeats the one of the file: kubespray before 2.28 writes systemdCgroup
cgroup_parent() {
  ! cri_ info | grep -qi '"SystemdCgroup": *true' || printf '"cgroup_parent":"system.slice",'
}

# cri_wait CONTAINER: until it has ended or is gone; says how it ended where it printed nothing
cri_wait() {
  local since state code
  since=$(uptime_now)
  while [ $(($(uptime_now) - since)) -lt 60 ]; do
    state=$(cri_ inspect "$1") || { echo "it was killed: $(last_line "$state")"; return; }
    case $state in
      *CONTAINER_EXITED*)
        code=$(printf '%s\n' "$state" | sed -n 's/.*"exitCode": *\([0-9]*\).*/\1/p' | head -n 1)
        case ${code:-0} in
          0 | 137 | 143) echo "it printed nothing, or it was killed (exit status ${code:-unknown})" ;;
          *) echo "it ended with exit status $code" ;;
        esac
        return
        ;;
    esac
    nap
  done
  echo "it did not end within 60 seconds"
}

# ---------------------------------------------------------------- docker

docker_() { bounded 60 docker "$@"; }

docker_checks() {
  local fetched
  have docker || { check docker.runtime not-proven "the docker command is not on the node" "install docker-cli"; return; }
  if ! fetched=$(docker_image); then
    case $fetched in *Cannot*connect*Docker*daemon*) set -- "systemctl start docker; $(log_of docker) says why it does not run" ;; esac
    check docker.runtime failed "docker cannot have the image $image: $(last_line "$fetched")" "${1:-set verify.image to one that the node can pull}"
    return
  fi
  docker_check runtime nvidia --runtime=nvidia
  docker_check default "$(word default_docker)"
  without_driver docker.gpus-all || docker_check gpus-all '' --gpus all
}

docker_clean() {
  have docker || return 0
  docker_ rm -f "$NAME-runtime" "$NAME-default" "$NAME-gpus-all"
  docker_ rmi "$OWN_IMAGE"
}

docker_image() {
  if [ "$image" = "$OWN_IMAGE" ]; then
    docker_ load -i "$GPUNODE_IN/image.tar"
  else
    docker_ image inspect "$image" || bounded 300 docker pull "$image"
  fi
}

# docker_check WHAT EXPECTED-RUNTIME [OPTION…]
docker_check() {
  local what expected used_for id how made used
  what=$1 expected=$2 used_for=
  shift 2
  id=docker.$what
  how=${*:-by default}
  [ "$(how_to_ask)" != mount ] || set -- "$@" -v "/dev/null:$BY_MOUNT/all:ro"
  made=$(docker_ create --name "$NAME-$what" --network none -e NVIDIA_VISIBLE_DEVICES=all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    "$@" "$image" /bin/sh -c "$INSIDE") || { check "$id" failed "docker create $how fails: $(last_line "$made")" "docker info shows the runtimes; gpunode provision"; return; }
  used=$(docker_ inspect -f '{{.HostConfig.Runtime}}' "$NAME-$what")
  if [ -z "$expected" ] || [ "$used" = "$expected" ]; then
    # --gpus all has docker's own hook, whatever the runtime is
    [ "$what" = default ] || used_for=nvidia
    judge "$id" "$(docker_ start -a "$NAME-$what")" "docker ($how, runtime $used)" "${used_for:-$used}"
  else
    check "$id" failed "docker $how took the runtime $used, not $expected" "gpunode provision rewrites daemon.json"
  fi
  docker_ rm -f "$NAME-$what" >/dev/null
}

# ---------------------------------------------------------------- clean up

clean() {
  local engine
  # shellcheck disable=SC2086 # numbers
  [ -z "$at_work" ] || kill $at_work 2>/dev/null # each ends what it has begun
  wait
  for engine in $(requested runtimes); do "${engine}_clean"; done >/dev/null
  return 0
}

# ---------------------------------------------------------------- main

# all_engines: their checks side by side, and what they say one after the other; the last line proves that it is all
all_engines() {
  local engine
  for engine in $(requested runtimes); do
    (
      trap 'exit 130' TERM
      "${engine}_checks"
      echo end
    ) >"$GPUNODE_IN/.checks.$engine" &
    at_work="$at_work $!"
  done
  wait
  at_work=''
  for engine in $(requested runtimes); do
    grep -vx end "$GPUNODE_IN/.checks.$engine"
    [ "$(tail -n 1 "$GPUNODE_IN/.checks.$engine")" = end ] ||
      check smoke.ran failed "the checks of $engine ended early: killed, or no room in ${GPUNODE_IN%/*}" "run verify again"
  done
}

need_root
[ -z "$(word controller)" ] || lock # the engines that it proves may be another controller's at work
at_work='' python=''
image=$(word image)
image=${image:-$OWN_IMAGE}
gpus=$(word gpus)
[ "$gpus" != found ] || gpus=$(pci_gpus)
gpus=${gpus:-0}
driver_check
cuda_init_check
cuda_check
toolkit_check
dcgm_check
if [ -n "$(requested runtimes)" ]; then
  trap clean EXIT
  trap 'exit 130' HUP INT TERM
  clean
  [ "$image" != "$OWN_IMAGE" ] || own_image
  all_engines
fi
finish unchanged "the checks were made"
