# shellcheck shell=sh
# shellcheck disable=SC2154  # variables of the program that this is a part of
# The probe's sections about packages and configuration files.  Stands behind probe_engines.sh, whose units it looks for,
# and before probe.sh.

# ---------------------------------------------------------------- packages

CONCERN='nvidia\|libnvidia\|xserver-xorg-video-nvidia\|cuda\|libcuda\|linux-image\|linux-headers\|linux-modules-nvidia'
CONCERN="$CONCERN\|linux-objects-nvidia\|linux-signatures-nvidia\|linux-kbuild\|kernel\|kmod-nvidia\|dkms\|containerd\|docker"
CONCERN="$CONCERN\|runc\|crun\|cri-o\|cri-tools\|podman\|moby-\|kubelet\|kubeadm\|kubectl\|initramfs-tools\|dracut"
CONCERN="$CONCERN\|linux-lts\|linux-zen\|linux-hardened\|datacenter-gpu-manager\|libnvsdm\|nvlsm\|nvtop\|xorg-x11-drv-nvidia\|epel-release\|oracle-epel-release"
CONCERN="$CONCERN\|python3-dnf-plugin-versionlock\|dnf-plugin-versionlock\|yum-plugin-versionlock"
CONCERN="$CONCERN\|firmware-nvidia\|infiniband-diags\|azurelinux-repos\|akmod\|xorg-x11-nvidia\|glx-alternative-nvidia"
CONCERN="$CONCERN\|opencl-nvidia\|lib32-nvidia\|lib32-opencl-nvidia\|dnf-plugin-nvidia\|x11-video-nvidia\|NVIDIA-vGPU"

probe_packages() {
  REPLY=$(family_manager)
  if [ "$REPLY" ]; then :; elif have dpkg-query; then REPLY=apt; elif have zypper; then REPLY=zypper; elif have rpm; then REPLY=dnf; elif have pacman; then REPLY=pacman; fi
  if [ "$REPLY" = apt ] && have dpkg-query; then
    line "manager apt"
    # every package is asked for and few are kept: what another package's half-finished state blocks is seen so
    # shellcheck disable=SC2016 # dpkg-query's own variables
    in_full 20 dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n' 2>/dev/null |
      sed -n -e "s/^.[ic] $tab\($CONCERN\)/| &/p;t" -e "/^.[in] /d;/^.c /d;/^$/d" -e 's/^/| /p'
  elif { [ "$REPLY" = dnf ] || [ "$REPLY" = zypper ]; } && have rpm; then
    line "manager $REPLY"
    in_full 30 rpm -qa --qf 'ii \t%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\n' 2>/dev/null |
      sed -n "s/^ii $tab\($CONCERN\)/| &/p;s/^cut /| &/p"
  elif [ "$REPLY" = pacman ] && have pacman; then
    line "manager pacman"
    in_full 20 pacman -Q 2>/dev/null | sed -n "s/^\(\($CONCERN\)[^ ]*\|linux\) \(.*\)/| ii $tab\1$tab\3$tab/p;s/^cut /| &/p"
  else
    remark "no package manager that gpunode knows"
  fi
  lost_programs "$REPLY"
}

# lost_programs MANAGER: programs of NVIDIA's packages that are gone, as lines `lost PATH PACKAGE`
lost_programs() {
  local file
  for file in /usr/bin/nvidia-smi /usr/bin/nvidia-ctk /usr/bin/nvidia-container-runtime; do
    have "${file##*/}" || case $1 in
    apt) grep -lsx "$file" /var/lib/dpkg/info/*nvidia*.list | sed 's|.*/\([^/:]*\)\(:[^/]*\)\{0,1\}\.list$|\1|' ;;
    pacman) within 3 pacman -Ql nvidia-utils nvidia-container-toolkit | sed -n "s|^\([^ ]*\) $file\$|\1|p" ;;
    dnf | zypper) within 3 rpm -qf --qf '%{NAME}\n' "$file" ;;
    esac 2>/dev/null | sed -n "s|^[^ ][^ ]*\$|lost $file &|p" | quote
  done
}

probe_holds() {
  local file
  for file in /etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml /etc/yum/pluginconf.d/versionlock.list /etc/zypp/locks; do
    [ -s "$file" ] && sed 's/^/| /' "$file"
  done
  [ ! -r /etc/pacman.conf ] || for file in /etc/pacman.conf $(sed -n 's/^ *Include *= *//p' /etc/pacman.conf); do
    [ -r "$file" ] && sed -n 's/^ *IgnorePkg *= */| IgnorePkg /p' "$file"
  done
  return 0
}

# probe_locks: who holds the package manager's locks, by /proc/locks, which names the inode of each lock
probe_locks() {
  local file pid left holder run
  stat -c '%i %n' /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/rpm/.rpm.lock \
    /usr/lib/sysimage/rpm/.rpm.lock 2>/dev/null | while read -r inode file; do
    while read -r _ kind _ _ pid where _; do
      [ "$kind" != '->' ] && [ "${where##*:}" = "$inode" ] && first "/proc/$pid/comm" && line "$file $pid $REPLY"
    done </proc/locks
  done
  for file in /var/lib/pacman/db.lck /run/zypp.pid /var/cache/dnf/metadata_lock.pid; do
    pid=
    [ -s "$file" ] && first "$file" && pid=$REPLY
    [ -n "$pid" ] && [ -d "/proc/$pid" ] && first "/proc/$pid/comm" && line "$file $pid $REPLY"
  done
  [ -e /var/lib/pacman/db.lck ] && line "/var/lib/pacman/db.lck - pacman"
  lease_now | while read -r left holder run _; do [ "$left" = 0 ] || line "lease $holder $run"; done
}

# ---------------------------------------------------------------- files

FILE_MAX=1048576 # bytes of a file that are sent

probe_files() {
  engine_files configuration_files
}

# configuration_files ENGINE_FILE…: those, and all others whose content counts
configuration_files() {
  local kind sent file
  # shellcheck disable=SC2086 # a list of paths
  set -- "$@" "$TOOLKIT_CONFIG" /etc/nvidia-container-toolkit/*.env /etc/cdi/* /run/cdi/* \
    $KUBERNETES_FILES /etc/rancher/*/config.yaml.d/* /var/lib/rancher/*/agent/etc/containerd/config*.toml.d/*.toml \
    /var/lib/rancher/*/agent/etc/containerd/*.toml /var/lib/rancher/*/agent/etc/containerd/*.tmpl \
    /etc/k0s/containerd.d/*.toml /etc/kubernetes/kubelet/config.json.d/*.conf /etc/kubernetes/kubelet.conf.d/*.conf \
    /etc/kubernetes/manifests/kube-scheduler.yaml /etc/systemd/system/containerd.service.d/*.conf \
    /etc/systemd/system/docker.service.d/*.conf /etc/systemd/system/kubelet.service.d/*.conf \
    /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/preferences /etc/apt/preferences.d/* /etc/apt/trusted.gpg \
    /etc/apt/trusted.gpg.d/* /etc/apt/keyrings/* /usr/share/keyrings/gpunode-* \
    /usr/share/keyrings/*nvidia* /usr/share/keyrings/*cuda* \
    /usr/share/keyrings/*docker* /usr/share/keyrings/*kubernetes* /etc/apt/apt.conf.d/*unattended-upgrades* \
    /etc/apt/apt.conf.d/*proxy* /etc/yum.repos.d/*nvidia* /etc/yum.repos.d/*cuda* /etc/yum.repos.d/*docker* /etc/yum.repos.d/gpunode-* \
    /etc/zypp/repos.d/*[Pp]ackage*[Hh]ub* /etc/zypp/repos.d/*nvidia* /etc/zypp/repos.d/*cuda* /etc/zypp/repos.d/gpunode-* /etc/pki/rpm-gpg/*NVIDIA* /etc/pki/rpm-gpg/*gpunode* /etc/pacman.conf /etc/pacman.d/gpunode-* \
    /etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml /etc/profile.d/*cuda* /etc/profile.d/*nvidia* /etc/systemd/system/gpunode-* /etc/gpunode/* /usr/lib/gpunode/gpu-settings /usr/lib/gpunode/host-settings \
    /etc/default/grub.d/90-gpunode.cfg /etc/sysctl.d/99-gpunode-tuning.conf /etc/systemd/system/*.service.d/90-gpunode-memlock.conf \
    /etc/ld.so.conf.d/*cuda* /etc/ld.so.conf.d/*nvidia* /etc/nvidia/gridd.conf* \
    /etc/nvidia-imex/nodes_config.cfg /etc/udev/rules.d/*nvidia*
  # shellcheck disable=SC2046 # paths of configuration files, one word each
  set -- "$@" $(containerd_imports "$containerd_config" 3) \
    $(grep -l -i -E '^\[(crb|powertools|ol[0-9]+_codeready_builder|[^]]*(epel|rpmfusion|negativo17|elrepo)[^]]*)\]' /etc/yum.repos.d/*.repo 2>/dev/null) \
    $(grep -l -E '^[^#]*(nvidia|nouveau|nova_core|overlay|br_netfilter|bridge-nf-call|ip_forward)' \
      /etc/modprobe.d/* /usr/lib/modprobe.d/* /run/modprobe.d/* /etc/modules /etc/modules-load.d/* /usr/lib/modules-load.d/* \
      /etc/sysctl.conf /etc/sysctl.d/* /run/sysctl.d/* /usr/local/lib/sysctl.d/* /usr/lib/sysctl.d/* 2>/dev/null)
  for kind in k3s rke2; do
    rancher_folder "$kind"
    [ "$data_folder" = "/var/lib/rancher/$kind" ] || set -- "$@" "$data_folder"/agent/etc/containerd/*.toml \
      "$data_folder"/agent/etc/containerd/*.tmpl "$data_folder"/agent/etc/containerd/config*.toml.d/*.toml
  done
  sent=$newline
  for file in "$@"; do
    exists "$file" || continue
    case $file in */debian-archive-* | */ubuntu-keyring-* | */ubuntu-archive-* | *~) continue ;; esac # not ours, and long
    case $sent in *"$newline$file$newline"*) continue ;; esac
    sent=$sent$file$newline
  done
  # shellcheck disable=SC2046,SC2086 # a list of paths
  files_meta $sent
}

# files_meta PATH…: one stat for all, then the bytes of each
files_meta() {
  local path
  [ $# -gt 0 ] || return 0
  stat -L -c '%f %a %U:%G %s %n' "$@" 2>/dev/null | while read -r type mode owner size path; do
    case $type:$path in 8*) ;; *.json | *.toml | *.tmpl | *.yaml | *.conf) ;; *) continue ;; esac # of a regular file 8…
    printf '#: file %s\n' "$path"
    line "$mode $owner $size"
    [ -L "$path" ] && line "-> $(readlink "$path")"
    if [ ! -f "$path" ]; then
      line irregular
      remark "no regular file"
    elif [ ! -r "$path" ]; then
      denied "not permitted"
    elif [ "$size" -gt "$FILE_MAX" ]; then
      remark "larger than $FILE_MAX bytes"
    elif [ "$size" -gt 0 ]; then
      encoded=$(base64 "$path" 2>/dev/null </dev/null) || remark "no base64"
      for text in $encoded; do line "$text"; done
    fi
  done
  for path in "$@"; do
    [ -L "$path" ] && [ ! -e "$path" ] && printf '#: file %s\n| -> %s\n' "$path" "$(readlink "$path")"
  done
  return 0
}
