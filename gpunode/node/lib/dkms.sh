# shellcheck shell=sh disable=SC2154,SC2034
# What packages.sh and runfile.sh share: which of NVIDIA's modules DKMS has built, and for which kernels.
# The script behind it has `fail MESSAGE FIX` and the file $log.

# dkms_states: of the lines of dkms status those of NVIDIA's modules as MODULE VERSION KERNEL STATE; dkms 2 writes
# «nvidia, 1, 6.1, x86_64: …», dkms 3 «nvidia/1, 6.1, …»
dkms_states() {
  sed -n '/^nvidia/{ s|/|, |; s/: */, /; s/,  */ /g; p; }' | awk 'NF >= 5 { print $1, $2, $3, $5 } NF < 5 { print $1, $2, "-", $NF }'
}

# kernels_with_headers: their releases, one a line
kernels_with_headers() { for tree in /lib/modules/*; do [ ! -d "$tree/build/" ] || echo "${tree##*/}"; done; }

# whether a module was built before its source was put there: rpm removes the other flavour of the same version after
# the new one has come, and DKMS takes what it knows for what it is asked for
dkms_stale() {
  local object
  for object in "$DKMS_TREE/$1/$2/$3"/*/module/nvidia.ko*; do
    [ -e "$object" ] && [ -n "$(find "/usr/src/$1-$2" -type f -cnewer "$object" 2>/dev/null | head -n 1)" ] && return
  done
  return 1
}

# whether a module that DKMS calls installed has gone from the kernel's folder: for DKMS it is installed all the same
dkms_gone() {
  local object name
  for object in "$DKMS_TREE/$1/$2/$3"/*/module/*.ko*; do
    [ -e "$object" ] || continue
    name=${object##*/}
    [ -n "$(find "/lib/modules/$3/" -name "${name%%.ko*}.ko*" 2>/dev/null | head -n 1)" ] || return 0
  done
  return 1
}

# whether a module has to be built from the beginning: dkms install takes what it has for right
dkms_to_rebuild() { dkms_stale "$@" || dkms_gone "$@"; }

# lines like those, of modules that a package brings and DKMS does not know: when flavours change places in one
# transaction, rpm runs the last script of the old one after those of the new one, and that takes the version off DKMS
dkms_forgotten() {
  have dkms && have rpm || return 0
  rpm -qa --qf '%{VERSION}\n' '*nvidia*dkms*' 2>/dev/null | while read -r version; do
    [ ! -e "/usr/src/nvidia-$version/dkms.conf" ] || grep -q "^nvidia $version " "$GPUNODE_IN/.dkms" || echo "nvidia $version - forgotten"
  done
}

# lines `MODULE VERSION KERNEL` that should be built and are not, for every kernel whose headers are there; where the tree
# is empty, or does not show all as installed, DKMS says, which also knows of weak modules
dkms_missing() {
  local unbuilt
  have dkms || return 0
  dkms_tree >"$GPUNODE_IN/.tree" && [ -s "$GPUNODE_IN/.tree" ] && unbuilt=$(dkms_unbuilt <"$GPUNODE_IN/.tree") && [ -z "$unbuilt" ] && return
  dkms status 2>/dev/null | dkms_unbuilt
}

dkms_unbuilt() {
  dkms_states >"$GPUNODE_IN/.dkms"
  dkms_forgotten >"$GPUNODE_IN/.forgotten" && cat "$GPUNODE_IN/.forgotten" >>"$GPUNODE_IN/.dkms"
  cut -d ' ' -f 1,2 "$GPUNODE_IN/.dkms" | sort -u | while read -r module version; do
    for kernel in $(kernels_with_headers); do
      grep -q "^$module $version $kernel installed" "$GPUNODE_IN/.dkms" && ! dkms_to_rebuild "$module" "$version" "$kernel" || echo "$module $version $kernel"
    done
  done
}

# build_error: what the compiler said in .make.log, else how make ended, else what DKMS said
build_error() {
  local lines
  lines=$(grep -E '(error|fatal|FATAL|ERROR): |No rule to make|undefined reference' "$GPUNODE_IN/.make.log" | head -n 3)
  [ -n "$lines" ] || lines=$(grep -v '^ *$' "$GPUNODE_IN/.make.log" | tail -n 3)
  [ -n "$lines" ] || lines=$(grep -E 'Error!|No rule' "$log" | tail -n 1)
  printf '%s\n' "$lines" | cut -c 1-300 | sed '$!s/$/;/'
}

# Package scripts may skip a kernel whose headers came in the same transaction, or fail for one and still succeed.
dkms_build() {
  dkms_missing >"$GPUNODE_IN/.unbuilt"
  [ -s "$GPUNODE_IN/.unbuilt" ] || return 0
  while read -r module version kernel; do
    say note "building $module $version for kernel $kernel"
    ! dkms_to_rebuild "$module" "$version" "$kernel" || {
      dkms remove "$module/$version" -k "$kernel"
      dkms add "$module/$version"
    } >>"$log" 2>&1 </dev/null 9>&-
    dkms install "$module/$version" -k "$kernel" >>"$log" 2>&1 </dev/null 9>&- && built=1 && continue
    cat "$DKMS_TREE/$module/$version/build/make.log" "$DKMS_TREE/$module/$version/$kernel"/*/log/make.log 2>/dev/null >"$GPUNODE_IN/.make.log"
    { echo "make.log of $module $version for kernel $kernel:" && cat "$GPUNODE_IN/.make.log"; } >>"$log"
    fail "DKMS could not build $module $version for kernel $kernel: $(build_error)" \
      "see the log; often the compiler or the headers do not fit the kernel, or the branch is too old for it"
  done <"$GPUNODE_IN/.unbuilt"
  unbuilt=$(dkms_missing)
  [ -z "$unbuilt" ] || fail "DKMS says that $(printf '%s' "$unbuilt" | tr '\n' ';') is not installed" "run dkms status on the node"
}
