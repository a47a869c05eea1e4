# shellcheck shell=sh
# What DKMS has of NVIDIA's modules, from its tree: dkms status starts hundreds of processes.  Before probe.sh and dkms.sh.

DKMS_TREE=/var/lib/dkms

# dkms_tree: the lines of dkms status; fails, and prints nothing, where its tree or a source is elsewhere
dkms_tree() {
  local version
  ! grep -qs '^[[:space:]]*dkms_tree=' /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf || return
  set -- "$DKMS_TREE"/nvidia*/[0-9]*
  [ -e "$1" ] || return 0
  for version in "$@"; do [ -e "$version/source/dkms.conf" ] || return; done
  for version in "$@"; do dkms_version "$version"; done
}

# dkms_version TREE/MODULE/VERSION: a line for each kernel that it was built for
dkms_version() {
  local module version state folder kernel architecture
  module=${1%/*} version=${1##*/} state=added
  for folder in "$1"/*/*/module; do
    [ -d "$folder" ] || continue
    folder=${folder%/module} state=built
    kernel=${folder%/*} architecture=${folder##*/}
    kernel=${kernel##*/}
    case $(readlink "$module/kernel-$kernel-$architecture" 2>/dev/null) in "$folder" | "${folder#"$module/"}") state=installed ;; esac
    echo "${module##*/}/$version, $kernel, $architecture: $state"
  done
  [ "$state" != added ] || echo "${module##*/}/$version: added"
}
