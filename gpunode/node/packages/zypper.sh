# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034  # $log and $why are common.sh's, $refreshed_all is for packages.sh
# zypper, for packages.sh.  Tried with zypper 1.14.

zypper_options() {
  use_proxy
  export ZYPP_LOCK_TIMEOUT=60
  # our own locks would stand in the way of their packages: the solver reads a list without them
  conf=/etc/zypp/zypp.conf
  [ -e "$conf" ] || conf=/usr/etc/zypp/zypp.conf
  { cat "$conf" 2>/dev/null || echo '[main]'; } | sed "/^ *locksfile.path/d; s|^\[main\]|&\nlocksfile.path = $GPUNODE_IN/.locks|" >"$GPUNODE_IN/.zypp.conf"
  { requested install | cut -d ' ' -f 1; requested remove; } | awk '
    NR == FNR { ours[$1] = 1; next }
    /^$/ { show() } { block = block $0 "\n" } /^solvable_name:/ { name = $2 }
    END { show() }
    function show() { if (!(name in ours)) printf "%s", block; block = ""; name = "" }' - /etc/zypp/locks >"$GPUNODE_IN/.locks" 2>/dev/null
  export ZYPP_CONF="$GPUNODE_IN/.zypp.conf"
  ! coming || zypper_lay_out
  ! alone || repos=--reposd-dir=$GPUNODE_IN/.sources
}

# Repositories that come are read in a root of the question's own, with the node's packages and lists: zypper trusts keys
# by rpm's database.  Large files are links; what it may write in place is small, or that database, and is copied.
zypper_lay_out() {
  local database
  root=$GPUNODE_IN/.root database=$(rpm --eval %_dbpath)
  mkdir -p "$root${database%/*}" "$root/var/cache"
  cp -a --parents /etc/zypp /etc/products.d /etc/os-release "$root" 2>>"$log"
  cp -a "$database" "$root${database%/*}"
  cp -as /var/cache/zypp "$root/var/cache/" 2>>"$log"
  find /var/cache/zypp -type f -size -64k -exec cp -a --remove-destination --parents {} "$root" \; 2>>"$log"
  lay_out /etc/zypp/repos.d
  rm -rf "$root/etc/zypp/repos.d"
  mv "$GPUNODE_IN/.laid" "$root/etc/zypp/repos.d"
}

# what it writes is for every user of the node to read
# shellcheck disable=SC2046 # options or none
zypper_() { (umask 022 && exec zypper ${root:+--root "$root"} ${repos:+"$repos"} $(! asking || echo --no-refresh) --non-interactive "$@" </dev/null 9>&-); }

# kernel packages, of which several versions are there at a time, also stand as NAME-VERSION, the version as uname -r has
# it: without the number of the last rebuild
zypper_installed() {
  {
    zypper_locks | sed 's/^/lock /'
    rpm -qa --qf 'package %{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n' 2>/dev/null
  } | awk -v native="$(uname -m)" '
    $1 == "lock" { hold[$2] = 1; next }
    $2 == "gpg-pubkey" { next }
    { print $2 ($4 == native || $4 == "noarch" ? "" : "." $4), $3, (hold[$2] ? "hold" : "-") }
    $2 ~ /^kernel/ { version = $3; sub(/\.[^.]*$/, "", version); print $2 "-" version, $3, "-" }'
}

# names of locks that stand for one package in every version
zypper_locks() {
  awk '/^type: package/ { package = 1 } /^(match_type|case_sensitive):/ { next }
    /^solvable_name:/ { name = $2 } /^(version|repo|solvable_arch):/ { package = 0 }
    /^$/ { show() } END { show() }
    function show() { if (package && name !~ /[*?]/ && name != "") print name; package = 0; name = "" }' /etc/zypp/locks 2>/dev/null
}

zypper_holder() {
  pid_holder /run/zypp.pid /var/run/zypp.pid | grep . || lock_holder /var/lib/rpm/.rpm.lock /usr/lib/sysimage/rpm/.rpm.lock
}

zypper_recover() {
  rpm_recover
  [ -n "$(unfinished packages)" ] || return 0
  attempt zypper_ verify --no-recommends || say note "zypper verify: $why"
}

zypper_configured() {
  [ -z "$(missing_source)" ] || return 1
  ! coming || { lists_are_fresh || zypper_refresh_all; zypper_refresh; }
  for repository in $(repositories); do
    [ -e "${root:-}/var/cache/zypp/solv/$repository/solv" ] || return 1
  done
}

# The key of the repository is in rpm's keyring before: zypper itself would ask whether to trust it.
zypper_refresh() {
  sources_there
  requested refresh | while read -r path; do sed -n 's|^gpgkey *= *file://||p' "$(source_file "$path")"; done | while read -r key; do
    [ ! -e "$key" ] || rpm ${root:+--dbpath "$root$(rpm --eval %_dbpath)"} --import "$key" >>"$log" 2>&1
  done
  for repository in $(repositories); do
    logged update zypper_ refresh --force "$repository" || zypper_refresh_failed
  done
}

zypper_refresh_all() { refreshed_all=1; attempt zypper_ refresh || say note "zypper refresh: $why"; }

zypper_refresh_failed() {
  why=$(grep -Ei 'error|fail|signature|key|not found|valid' "$GPUNODE_IN/.update" | head -n 1)
  if grep -Eqi 'signature|signed|key' "$GPUNODE_IN/.update"; then wrong_signature "$why"; fi
  unreadable_source "$why"
}

# NAME to have, -NAME to remove; of a version's pattern the newest that is there
zypper_words() {
  requested install | while read -r name version _; do
    case $name in
      kernel-*-devel-[0-9]*) version="${name##*-devel-}*" name=${name%"${name##*-devel}"} ;;
    esac
    if [ "$version" = - ]; then
      echo "$name"
    else
      echo "$name=$(zypper_newest "$name" "$version")"
    fi
  done
  sed 's/^/-/' "$GPUNODE_IN/.to_remove"
}

# the newest edition of a package that fits a pattern, else the pattern's beginning, which zypper then calls unknown
zypper_newest() {
  zypper_ --xmlout search --details --match-exact --type package "$1" 2>/dev/null |
    sed -n "s/.*<solvable .*name=\"$1\".*edition=\"\([^\"]*\)\".*/\1/p" | sort -Vr | while read -r edition; do
    # shellcheck disable=SC2254  # the trailing * of a version is a pattern by design
    case ${edition#*:} in
      $2) echo "$edition" && break ;;
    esac
  done | grep . || echo "${2%\**}"
}

zypper_install() {
  # without -- the first name to remove is read as options, where none is to be installed
  # shellcheck disable=SC2046  # words by design, their letters were checked by the builder of the request
  zypper_ "$@" -- $(zypper_words)
}

zypper_simulate() {
  zypper_install --xmlout install --dry-run --no-recommends --oldpackage --force-resolution --details >"$GPUNODE_IN/.simulated" 2>&1 || return 1
  awk '
    /<to-(install|upgrade|downgrade|upgrade-change-arch|reinstall|change-arch)[ >]/ { op = "install" }
    /<to-remove[ >]/ { op = "remove" }
    /<\/to-/ { op = "" }
    op != "" && /<solvable / && /type="package"/ { print op, value("name") (op == "install" ? " " value("edition") : "") }
    function value(key) { return match($0, " " key "=\"[^\"]*\"") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 4) : "" }' \
    "$GPUNODE_IN/.simulated"
}

zypper_why_not() {
  sed -n 's/<[^>]*>/ /g; s/&apos;\|&quot;/"/g; /roblem\|nothing provides\|conflicts\|not found\|No provider/p' "$GPUNODE_IN/.simulated" | head -n 4 | tr -s ' \n' ' '
}

zypper_needs() {
  awk 'match($0, /download-size="[0-9]+"/) { fetch = substr($0, RSTART + 15, RLENGTH - 16) }
    match($0, /space-usage-diff="[0-9]+"/) { unpack = substr($0, RSTART + 18, RLENGTH - 19) }
    END { printf "%d %d\n", fetch / 1024, unpack / 1024 }' "$GPUNODE_IN/.simulated"
}

zypper_download() { zypper_run --download-only; }

# zypper_run OPTION…: the transaction, its output in .transaction
zypper_run() {
  logged transaction zypper_install install "$@" --no-recommends --oldpackage --force-resolution --auto-agree-with-licenses
  result=$?
  # 100 and above say what else to know: updates needed, a reboot wanted
  [ "$result" -lt 100 ] || [ "$result" = 104 ] || [ "$result" = 107 ] || result=0
  return $result
}

zypper_commit() {
  zypper_run
  result=$?
  zypper_locks | grep -Fx -f "$GPUNODE_IN/.to_remove" | while read -r name; do zypper_lock remove "$name"; done
  return $result
}

zypper_printed() { first_of 'error|fail|problem|not found' "$GPUNODE_IN/.transaction"; }

zypper_hold() {
  for name in "$@"; do
    zypper_locks | grep -Fqx "$name" || zypper_lock add "$name" || return 1
  done
}

# zypper_lock add|remove NAME: in the node's own list
zypper_lock() { (unset ZYPP_CONF && zypper_ "$1lock" "$2" >>"$log" 2>&1); }

zypper_unhold() { echo "zypper removelock $1"; }
