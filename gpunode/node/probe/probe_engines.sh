# shellcheck shell=sh
# shellcheck disable=SC2154  # variables of the program that this is a part of
# The probe's sections about what uses the GPUs: CUDA, the toolkit, services, container engines, Kubernetes.  Stands
# before probe.sh.

UNITS="$ENGINE_UNITS $OTHER_UNITS docker.socket kubelet.service snap.microk8s.daemon-kubelite.service cri-docker.service
nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service nvidia-dcgm.service
nvidia-cdi-refresh.service nvidia-cdi-refresh.path
gpunode-firstboot.service gpunode-gpu.service gpunode-host.service gpunode-mig.service gpunode-mps.service nvidia-mig-manager.service
unattended-upgrades.service apt-daily-upgrade.timer dnf-automatic.timer display-manager.service"

# ---------------------------------------------------------------- CUDA and the container toolkit

probe_cuda() {
  local folder
  for folder in /usr/local/cuda-* /opt/cuda; do
    [ -d "$folder" ] || continue
    [ -e "$folder/bin/nvcc" ] && line "nvcc $folder"
    line "folder $folder"
    [ -r "$folder/version.json" ] && sed -n 's/.*"version" *: *"\([^"]*\)".*/| version \1/p' "$folder/version.json" | head -n 1
  done
  exists /usr/local/cuda && line "default $(readlink -f /usr/local/cuda)"
  return 0
}

probe_toolkit() {
  local tool
  for tool in nvidia-ctk nvidia-container-runtime nvidia-container-toolkit /usr/local/nvidia/toolkit/nvidia-ctk; do
    have "$tool" && ask 3 "$tool" --version && return
  done
  return 0
}

# probe_cdi: what a CDI specification has to fit: the driver's GPUs by the N of /dev/nvidiaN, how many MIG devices each is
# cut into, and which paths in the specifications are not here (they hold no commas and braces; JSON has many a line)
probe_cdi() {
  local file folder
  for file in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$file" ] && sed -n -e '/^GPU UUID:/h' -e '/^Device Minor:/{' -e G \
      -e 's/^[^0-9]*\([0-9][0-9]*\).*\n[^:]*:[[:space:]]*\(.*\)/| gpu \1 \2/p' -e '}' "$file"
  done
  for folder in /proc/driver/nvidia/capabilities/gpu*; do
    set -- "$folder"/mig/gi*/ci*
    [ -e "$1" ] && line "mig ${folder##*/gpu} $#"
  done
  for file in /etc/cdi/*.yaml /etc/cdi/*.json /run/cdi/*.yaml /run/cdi/*.json; do
    [ -r "$file" ] && sed 'y/,{}/\n\n\n/' "$file" |
      sed -n 's/^[ -]*"\{0,1\}\(hostPath\|path\)"\{0,1\} *: *"\{0,1\}\(\/[^"]*\).*/\2/p' | sort -u |
      while read -r path; do exists "$path" || line "missing $path"; done
  done
  return 0
}

# ---------------------------------------------------------------- services and engines

probe_units() {
  local text
  if ! booted_systemd; then
    remark "systemd is not running"
    daemons
    return
  fi
  units=
  known_units
  [ "$REPLY" ] || return 0
  # shellcheck disable=SC2086 # a list of names
  units=$(in_full 20 systemctl show -p Id,LoadState,ActiveState,UnitFileState,MainPID,ExecStart,FragmentPath,CanReload,LimitMEMLOCK $REPLY 2>&1 | quote)
  by_lines
  for text in $units; do
    case $text in '| MainPID='[1-9]*) units=$units$newline$(process "${text#*=}" && locked "${text#*=}") ;; esac
  done
  by_words
  printf '%s\n' "$units"
}

# known_units: those of $UNITS, in $REPLY, that have a file where systemd looks for one, or run without: systemd would
# look for each of the others again whenever it is asked (systemd.unit(5))
known_units() {
  local unit folder
  REPLY=
  for unit in $UNITS; do
    for folder in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system /usr/local/lib/systemd/system \
      /run/systemd/system /run/systemd/generator /run/systemd/generator.early /run/systemd/generator.late \
      /run/systemd/transient /etc/systemd/system.control /run/systemd/system.control /etc/systemd/system.attached \
      /run/systemd/system.attached; do
      exists "$folder/$unit" && break
    done || [ -L "/run/systemd/units/invocation:$unit" ] || continue
    REPLY="$REPLY $unit"
  done
}

# daemons: without systemd the engines are found by their names, those in containers of their own left out
daemons() {
  local folder key one more
  for folder in /proc/[0-9]*; do
    first "$folder/comm" || continue
    case " $ENGINE_DAEMONS kubelet $REPLY" in
    *" $REPLY "* | *" k3s"* | *" rke2"* | *" k0s"*) ;;
    *) continue ;;
    esac
    while read -r key one more; do
      [ "$key" = NSpid: ] && [ -z "$more" ] && [ "$one" ] && process "${folder#/proc/}"
    done <"$folder/status"
  done 2>/dev/null
}

# process PID: its arguments, separated by tabs
process() {
  [ -r "/proc/$1/cmdline" ] && line "process $1$tab$(tr '\0\n' '\t ' <"/proc/$1/cmdline")"
}

# locked PID: the bytes of memory that it may lock, by the kernel: systemd's word is that of the next start
locked() {
  local max what kind soft rest
  while IFS=' ' read -r max what kind soft rest; do # `probe_units` goes by lines
    [ "$max $what $kind" = 'Max locked memory' ] && line "locked $1 $soft"
  done <"/proc/$1/limits"
} 2>/dev/null

probe_runtimes() {
  local engine file socket
  for engine in $ENGINE_PROGRAMS; do
    for file in "$(command -v "${engine#*=}")" "/snap/${engine%%=*}/current/bin/${engine#*=}"; do
      [ -x "$file" ] && line "binary ${engine%%=*} $file" && ask 3 "$file" --version && break
    done
  done
  for socket in $ENGINE_SOCKETS /run/cri-dockerd.sock $OTHER_SOCKETS; do
    [ -S "$socket" ] && line "socket $socket"
  done
  bundled_containerd
  containerd_check
  docker_check # sections of their own follow: nothing of the runtimes comes behind
}

# containerd_check: what containerd says against its files; without one the daemon goes by its defaults
containerd_check() {
  have containerd || return 0
  containerd_root
  [ -e "$containerd_config" ] || return 0
  echo "#: containerd_check"
  ask 5 sh -c "exec containerd $CONTAINERD_JUDGE 2>&1 >/dev/null " "$containerd_config" | tail -n 5
}

# docker_check: what dockerd itself says of its file, with the arguments of the one that runs: from 23.0 on it can, and
# writes nothing for it
docker_check() {
  local text
  have dockerd || return 0
  docker_root
  [ -s "$docker_config" ] || return 0
  set --
  if [ "$docker_runs" ]; then # each word as it was given
    while IFS= read -r text; do set -- "$@" "$text"; done <<EOF
$(tr '\0' '\n' <"/proc/$docker_runs/cmdline")
EOF
    shift
  fi
  echo "#: docker_check"
  ask 5 sh -c "exec dockerd \"\$@\" $DOCKER_JUDGE" "$docker_config" "$@"
}

# the containerd that a Kubernetes distribution brings
bundled_containerd() {
  rancher_folder k3s
  rendered k3s
  set -- k3s "$data_folder/data/current/bin/containerd"
  rancher_folder rke2
  rendered rke2
  set -- "$@" rke2 "$data_folder/bin/containerd" k0s /var/lib/k0s/bin/containerd microk8s /snap/microk8s/current/bin/containerd
  while [ $# -gt 0 ]; do
    [ -x "$2" ] && line "bundled $1 $2" && ask 3 "$2" --version
    shift 2
  done
}

# rancher_folder KIND: sets $data_folder to the data folder of k3s or rke2: what its unit or its config files say
rancher_folder() {
  [ "${units+set}" ] || units=$(probe_units)
  unit_flags "$1"
  option --data-dir -d
  data_folder=$REPLY
  [ "$data_folder" ] || [ ! -d "/etc/rancher/$1" ] || data_folder=$(sed -n "s/^ *[\"']\{0,1\}data-dir[\"']\{0,1\} *: *[\"']\{0,1\}\([^\"' #]*\).*/\1/p" \
    "/etc/rancher/$1/config.yaml" "/etc/rancher/$1/config.yaml.d"/*.y*ml 2>/dev/null | tail -n 1)
  data_folder=${data_folder:-/var/lib/rancher/$1}
}

# rendered KIND: whether containerd's configuration was made after the runtime and the settings that it is made from came
rendered() {
  local made file runtime
  made=$(stat -c %Y "$data_folder/agent/etc/containerd/config.toml" 2>/dev/null) && runtime=$(command -v nvidia-container-runtime) || return 0
  option --config -c
  for file in "$runtime" "${REPLY:-/etc/rancher/$1/config.yaml}"* "${REPLY:-/etc/rancher/$1/config.yaml}".d/* "$data_folder"/agent/etc/containerd/*.tmpl; do
    any "$file" && [ "$(stat -L -c %Z "$file")" -ge "$made" ] && return 0
  done
  line "rendered $1"
}

# containerd_root: sets $containerd_config, the root file: what --config of the running daemon or its unit says
containerd_root() {
  daemon containerd containerd
  option --config -c
  containerd_config=${REPLY:-/etc/containerd/config.toml}
  line "config containerd $containerd_config"
}

# unit_flags NAME: sets $flags to the command line of the unit that starts the program NAME, or of its process where there
# is no unit: k3s hides the arguments of its process
unit_flags() {
  local text
  by_lines
  for text in $units; do
    case $text in '| ExecStart='*' argv[]='*) ;; *) continue ;; esac
    flags=${text##* argv\[\]=}
    case ${flags%% *} in */"$1") flags=${flags%%;*} && by_words && return ;; esac
  done
  by_words
  daemon "$1"
}

# daemon PROGRAM UNIT…: sets $flags to the command line of the main process of one of these units, else of their
# ExecStart, else of a process of that name, with a tab behind each argument; $REPLY to the PID, "" where none runs
daemon() {
  local text main id start program names
  [ "${units+set}" ] || units=$(probe_units)
  program=$1 names=" $* " REPLY='' flags='' main=0 id='' start=''
  by_lines
  for text in $units '| '; do
    case $text in
    '| MainPID='*) main=${text#*=} ;;
    '| Id='*) id=${text#*=} ;;
    '| ExecStart='*' argv[]='*) start=${text##* argv\[\]=} ;;
    '| ')
      case $names in *" ${id%.service} "*) REPLY=${main#0} flags=${start%%;*} && [ "$REPLY" ] && break ;; esac
      main=0 id='' start=''
      ;;
    esac
  done
  for text in $units; do
    case $text in "| process "*) ;; *) continue ;; esac
    text=${text#"| process "} main=${text%%"$tab"*} start=${text#*"$tab"}
    case ${REPLY:-$flags}:$main:${start%%"$tab"*} in "$main:"* | ":$main:$program" | ":$main:"*"/$program") REPLY=$main flags=$start && break ;; esac
  done
  by_words
}

# option LONG SHORT: sets $REPLY to the last value that $flags give to that option
option() {
  local long short
  REPLY='' long=$1 short=$2
  set -f
  # shellcheck disable=SC2086 # words of a command line
  set -- $flags
  set +f
  while [ $# -gt 0 ]; do
    case $1 in
    "$long="* | "$short="*) REPLY=${1#*=} ;;
    "$long" | "$short") REPLY=${2:-} ;;
    esac
    shift
  done
}

# engine_files COMMAND…: runs it with the paths of the engines' configuration files behind: the root that the arguments
# of the running daemon name, and the drop-ins in the folder that they name
engine_files() {
  local program unit config long short folder files folder_long folder_short
  [ "${containerd_config:-}" ] || containerd_root >/dev/null
  docker_root
  line "docker_config $docker_config"
  while IFS=' ' read -r program unit config long short folder files folder_long folder_short; do
    daemon "$program" "$unit"
    option "$folder_long" "$folder_short"
    folder=${REPLY:-$folder}
    option "$long" "$short"
    # shellcheck disable=SC2086 # a pattern
    set -- "$@" "${REPLY:-$config}" "$folder"/$files "$folder"/*/$files
  done <<EOF
$ENGINE_ROOTS
EOF
  # shellcheck disable=SC2086 # patterns
  "$@" "$containerd_config" "$docker_config" $ENGINE_FILES
}

# docker_root: sets $docker_config, and $docker_runs to the PID of a dockerd that runs
docker_root() {
  docker_config=/etc/docker/daemon.json
  have dockerd || [ ! -x /snap/docker/current/bin/dockerd ] || docker_config=/var/snap/docker/current/config/daemon.json
  # shellcheck disable=SC2086 # a list of names
  daemon dockerd $DOCKER_UNITS
  docker_runs=$REPLY
  option --config-file --config-file
  docker_config=${REPLY:-$docker_config}
}

# ---------------------------------------------------------------- what runs in the engines

NAMED=20 # containers and pods that are named; all are counted

# names ENGINE NAME…: how many there are, and the first ones
names() {
  local engine listed name
  engine=$1
  shift
  line "$engine count $#"
  listed=0
  for name in "$@"; do
    listed=$((listed + 1))
    [ "$listed" -gt "$NAMED" ] || line "$engine name $name"
  done
}

probe_containers() {
  local socket
  dockers
  for socket in $CRI_SOCKETS $OTHER_SOCKETS; do
    [ -S "$socket" ] && pods "$socket"
  done
  # shellcheck disable=SC2046 # a list of names
  [ ! -d /run/libpod ] || names podman $(podman_names | cut -d ' ' -f 2)
}

# dockers: the running dockerd is asked; a connection to its socket would start one that does not run
dockers() {
  local socket user tool found
  for socket in /run/user/*/docker.sock; do
    [ -S "$socket" ] || continue
    user=${socket#/run/user/}
    line "docker rootless ${user%%/*}"
  done
  # shellcheck disable=SC2086 # a list of names
  daemon dockerd $DOCKER_UNITS
  [ "$REPLY" ] || return 0
  started "$REPLY"
  for tool in nvidia-container-runtime-hook nvidia-cdi-hook; do # dockerd looks for them when it starts
    have "$tool" && line "docker hook $(stat -L -c %Z "$(command -v "$tool")")"
  done
  if have docker; then
    # shellcheck disable=SC2086 # a list of names
    found=$(dockerd_says ps --format '{{.Names}}') && names docker $found && docker_info
  elif have curl; then
    # shellcheck disable=SC2046 # a list of names
    found=$(within 5 curl -fsS --unix-socket /var/run/docker.sock http://docker/containers/json 2>/dev/null) &&
      names docker $(printf '%s' "$found" | grep -o '"Names":\["/[^"/]*"' | sed 's/.*\/\(.*\)"/\1/')
  else
    remark "no docker and no curl to ask dockerd with"
  fi
}

# docker_info: what the running dockerd goes by; its file may be newer
docker_info() {
  local answer
  answer=$(dockerd_says info --format '{{.LiveRestoreEnabled}}{{range $name, $runtime := .Runtimes}} {{$name}}{{end}}')
  line "docker live_restore ${answer%% *}"
  case $answer in *' '*) line "docker runtimes ${answer#* }" ;; esac
}

dockerd_says() { within 5 docker -H unix:///var/run/docker.sock "$@" 2>/dev/null </dev/null; }

# started PID: when the process of dockerd started, in seconds since 1970: ticks of 1/100 s since the kernel started
started() {
  local key boot
  first "/proc/$1/stat" || return 0
  # shellcheck disable=SC2086 # numbers
  set -- ${REPLY##*) }
  while read -r key boot; do
    [ "$key" = btime ] && [ $# -ge 20 ] && shift 19 && line "docker started $((boot + $1 / 100))" && break
  done </proc/stat
}

# pods SOCKET: NAMESPACE/NAME of the pods that an engine for Kubernetes runs; without crictl the number of its tasks.
# containerd has a folder for each of them, in a folder that only root may read: where it is empty nobody is asked.
pods() {
  local state kind pod found
  kind=${1#/run/} kind=${kind%%/*} state=${1%/containerd.sock}
  case $1 in
  */k0s/*) state=${1%.sock} ;;
  */microk8s/*) kind=microk8s state=${1%.sock} ;;
  esac
  if [ -r "$state" ] && [ -r "$state/io.containerd.runtime.v2.task" ] && ! any "$state"/io.containerd.*/k8s.io/*; then
    names "$kind"
  elif have crictl; then
    # columns from the right: runtime (of late), attempt, namespace, name; the age before them is of several words
    pod='^.* \([^ ][^ ]*\)  *\([^ ][^ ]*\)  *[0-9][0-9]*'
    # shellcheck disable=SC2046 # a list of names
    found=$(within 5 crictl --runtime-endpoint "unix://$1" pods --state ready 2>/dev/null </dev/null) &&
      names "$kind" $(printf '%s\n' "$found" | sed -n -e "s/$pod  *[^ ][^ ]* *\$/\2\/\1/p;t" -e "s/$pod *\$/\2\/\1/p")
  elif have ctr && [ "${1##*/}" = containerd.sock ]; then
    found=$(within 5 ctr -a "$1" -n k8s.io tasks ls -q 2>/dev/null </dev/null) && line "$kind tasks $(printf '%s' "$found" | grep -c .)"
  fi
}

probe_kubernetes() {
  local tool marker
  for tool in kubelet k3s rke2; do ! have "$tool" || ask 5 "$tool" --version; done
  if have k0s; then ask 5 k0s version; fi
  [ -r /snap/microk8s/current/meta/snap.yaml ] && sed -n "s/^version: *'\{0,1\}\(v[0-9.]*\).*/| microk8s \1/p" \
    /snap/microk8s/current/meta/snap.yaml
  for marker in /etc/kubernetes/kubelet.conf /var/lib/kubelet/kubeadm-flags.env /etc/kubernetes/manifests/kube-apiserver.yaml \
    /var/lib/rancher/k3s/server /var/lib/rancher/k3s/agent /var/lib/rancher/rke2/server /var/lib/rancher/rke2/agent \
    /var/lib/k0s/pki/ca.key /var/lib/k0s /var/snap/microk8s/current /run/nvidia/validations /run/nvidia/driver \
    /run/nvidia/validations/.driver-ctr-ready /usr/local/nvidia/toolkit; do
    exists "$marker" && line "exists $marker"
  done
  [ ! -r /run/nvidia/validations/driver-ready ] || sed -n 's/^IS_HOST_DRIVER=/| host_driver /p' /run/nvidia/validations/driver-ready
  return 0
}

probe_sysctl() {
  local key value
  for key in net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables \
    fs.inotify.max_user_instances fs.inotify.max_user_watches kernel.numa_balancing \
    $(sed -n 's/^\([a-z][A-Za-z0-9_./:@-]*\) = .*/\1/p' /etc/sysctl.d/99-gpunode-tuning.conf 2>/dev/null); do
    value=$(setting "$key") && line "$key $value"
  done
  return 0
}
