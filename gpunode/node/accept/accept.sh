# shellcheck shell=sh
# Runs one tool of an acceptance and sends what it printed.  Nothing stays: the tool's output lies in the request's folder,
# and the tool ends with this script, also when the connection is gone (each sample is written to it).
# Request (edge/accept/tool.py): `programs` (names, or paths with *; the first that is there), `arguments` and `environment`, one
# a line, `seconds`, `sample` (fields of nvidia-smi), `controller`, `image` (used where no program is there), `near` (an
# RDMA device: the tool runs on the CPUs beside it), `own_folder` (yes: the tool is started in the folder of its program).
# Output: missing (yes: there is no program), program, near, sample, beat, ended, output (base64).

MOST=1000000 # bytes of the tool's output: its end counts
EVERY=5      # seconds between samples

# in_use: why the GPUs of this node are somebody's; empty where they are free
in_use() {
  local programs pods process
  programs=$(nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>/dev/null | grep '^[0-9]' | head -n 3 | sed '$!s/$/;/' | tr '\n' ' ')
  programs=${programs% }
  [ -z "$programs" ] || { echo "programs use its GPUs: $programs"; return; }
  for process in /proc/[0-9]*; do
    # «slurmstepd infinity» keeps slurmd's cgroup, and is no job
    case $(tr '\000' ' ' 2>/dev/null <"$process/cmdline") in
      *slurmstepd*infinity*) ;;
      slurmstepd* | */slurmstepd*) echo "a job of Slurm runs on it"; return ;;
    esac
  done
  pods=$(gpu_pods | cut -d ' ' -f 1 | head -n 1)
  [ -z "$pods" ] || echo "a pod has GPUs on it ($pods)"
}

# found_program: the first of the programs that is there; of a path with * the last, which is the newest version
found_program() {
  requested programs | while read -r _name; do
    case $_name in
      /*) for _path in $_name; do [ ! -x "$_path" ] || [ -d "$_path" ] || echo "$_path"; done | tail -n 1 ;;
      *) command -v "$_name" 2>/dev/null ;;
    esac
  done | head -n 1
}

# engine: what could start the image, without fetching it
engine() {
  for _engine in docker podman; do
    if have "$_engine" && "$_engine" image inspect "$(word image)" >/dev/null 2>&1; then echo "$_engine" && return; fi
  done
}

# shellcheck disable=SC2317 # of the traps
stop() {
  [ -n "${tool:-}" ] || return 0
  [ -z "$(word image)" ] || [ -z "${by:-}" ] || "$by" kill "$CONTAINER" >/dev/null 2>&1
  kill -INT "-$tool" 2>/dev/null || kill -INT "$tool" 2>/dev/null # dcgmi stops the diagnosis of its daemon by it
  for _try in 1 2 3 4 5; do kill -0 "$tool" 2>/dev/null && sleep 1; done
  kill -KILL "-$tool" 2>/dev/null || kill -KILL "$tool" 2>/dev/null
  tool=
}

CONTAINER=gpunode-accept
OUT=$GPUNODE_IN/out
tool='' by=''
lease_refuse
busy=$(in_use)
[ -z "$busy" ] || finish refused "the node is in use: $busy" "drain it first, or wait"
program=$(found_program)
image=$(word image)
if [ -z "$program" ] && [ -n "$image" ]; then by=$(engine); fi
if [ -z "$program" ] && [ -z "$by" ]; then
  say missing yes
  finish unchanged "no program of this tool is here"
fi
say program "${program:-$(requested programs | head -n 1) of $image}"

# nobody else's gpunode works here meanwhile; nothing is created for it
if [ -e "$GPUNODE_STATE/lock" ]; then
  exec 9>>"$GPUNODE_STATE/lock"
  flock -n 9 || finish refused "$(lock_owner) is at work on this node" "wait for it to end, then run again"
fi

cpus=
if [ -n "$(word near)" ]; then
  cpus=$(cat "${RDMA:-/sys/class/infiniband}/$(word near)/device/local_cpulist" 2>/dev/null)
  case $cpus in *[!0-9,-]*) cpus= ;; esac
  [ -n "$by" ] || have taskset || cpus=
  [ -z "$cpus" ] || say near "$cpus"
fi
set --
if [ -n "$by" ]; then
  [ ! -d /dev/infiniband ] || set -- --device=/dev/infiniband
  set -- "$by" run "$@" --rm --name "$CONTAINER" --pull=never --gpus all --ipc=host --network=host --ulimit memlock=-1 ${cpus:+"--cpuset-cpus=$cpus"}
  while read -r line; do [ -z "$line" ] || set -- "$@" -e "$line"; done <<END
$(requested environment)
END
  program=$(requested programs | head -n 1)
  set -- "$@" --entrypoint "$program" "$image"
else
  set -- ${cpus:+taskset -c "$cpus"} env
  while read -r line; do [ -z "$line" ] || set -- "$@" "$line"; done <<END
$(requested environment)
END
  set -- "$@" "$program"
fi
while read -r line; do [ -z "$line" ] || set -- "$@" "$line"; done <<END
$(requested arguments)
END

trap 'stop; exit 141' PIPE HUP INT TERM
cd / || exit 2
[ -z "$(word own_folder)" ] || [ -n "$by" ] || cd "$(dirname "$(readlink -f "$program")")" || exit 2
if have setsid; then setsid "$@" >"$OUT" 2>&1 </dev/null 9>&- & else "$@" >"$OUT" 2>&1 </dev/null 9>&- & fi
tool=$!
left=$(word seconds) samples=$(word sample)
while kill -0 "$tool" 2>/dev/null && [ "$left" -gt 0 ]; do
  # a short wait at first: a tool that ends at once is not waited for
  _wait=$EVERY
  [ "$left" != "$(word seconds)" ] || _wait=1
  sleep "$_wait"
  left=$((left - _wait))
  # the line goes out also where nothing is sampled: whoever started this is gone when it cannot be written
  if [ -n "$samples" ]; then
    nvidia-smi --query-gpu="$samples" --format=csv,noheader,nounits 2>/dev/null | head -n 64 | while read -r line; do say sample "$line"; done
  fi
  say beat "$left" || { stop; exit 141; }
done
if kill -0 "$tool" 2>/dev/null; then
  stop
  say ended timeout
else
  wait "$tool"
  say ended "$?"
fi
tool=
say output "$(tail -c "$MOST" "$OUT" | base64 | tr -d '\n')"
finish unchanged "ran"
