#!/bin/sh
# One package transaction: recover what was interrupted, wait for the lock, refresh, install and remove in one go,
# hold, check that DKMS built what was installed, and write to the journal what was there before.
# Request and output: core/items/package.py.  Runs behind common.sh, devices.sh, reload.sh and a file for
# each package manager (apt.sh …), which offers functions NAME_…:
#   installed    lines `NAME VERSION hold|broken|-` of what is there, wholly or half
#   options      prepares the configuration of this transaction
#   holder       who holds the package manager's lock, nothing where it is free
#   recover      finishes what was interrupted
#   configured   whether the repositories of the request can be asked
#   refresh      reads them again; refresh_all reads every repository of the node
#   simulate     prints what would happen as lines `install NAME VERSION` and `remove NAME`; why_not says why it cannot
#   needs        KiB to fetch and KiB to unpack
#   download     fetches all of them and changes nothing, its output in .transaction
#   commit       does it, its output in .transaction; said: the line of it that says why it failed
#   hold NAME…   keeps packages as they are; unhold NAME says how a person lifts that
#   stream NAME  the stream of a module that is enabled (only asked where the request names streams)
# undo_packages.sh has what is needed to take packages back: marks, automatic, lift, remnants, purge; changes.sh keeps and
# tells what has changed.
# shellcheck disable=SC2154  # variables of the parts before it

# ---------------------------------------------------------------- any package manager

# fail MESSAGE FIX: with the log, taken before anything is rolled back, and the journal closed if it was opened
fail() {
  failure=$1 remedy=${2:-}
  show_log
  : >"$log"
  [ -z "${half:-}" ] || put_back
  undo_changes
  [ -z "${begun:-}" ] || {
    manager_ installed >"$GPUNODE_IN/.after"
    came_along
    journal packages failed ",\"message\":$(json_text "$failure")$(changes_json)"
    forget
  }
  [ ! -s "$log" ] || { say rollback "what followed" && show_log; }
  finish failed "$failure" "$remedy"
}

# undo_changes: streams and keys that were prepared for a transaction that does not come
undo_changes() {
  [ -z "${begun:-}" ] && [ -e "$GPUNODE_IN/.marks" ] || return 0
  [ "$manager" != dnf ] || dnf_streams_back
  manager_ marks >"$GPUNODE_IN/.marks.after"
  more_marks | sed -n 's/^key //p' | while read -r key; do rpm -e "$key" >>"$log" 2>&1; done
}

# put_back: a transaction that broke off half way is undone, by another one that asks for what was there before
put_back() {
  half=''
  manager_ installed >"$GPUNODE_IN/.after"
  ! same_packages || { [ "$manager" != dnf ] || dnf_streams_back; return; }
  awk 'FILENAME == ARGV[1] { now[$1] = $2 " " $3; next } !($1 in now) || now[$1] != $2 " " $3 { print $1, $2, "-" }' \
    "$GPUNODE_IN/.after" "$GPUNODE_IN/.before" >"$GPUNODE_IN/install"
  awk 'FILENAME == ARGV[1] { before[$1]; next } !($1 in before) { print $1 }' "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" >"$GPUNODE_IN/.to_remove"
  [ "$manager" != dnf ] || dnf_streams_back
  manager_ options
  manager_ commit >>"$log" 2>&1
  # shellcheck disable=SC2046,SC2086 # names
  left=$(manager_ remnants $(cat "$GPUNODE_IN/.to_remove") | grep -Fxv -f "$kept/remnants")
  # shellcheck disable=SC2086 # names
  [ -z "$left" ] || manager_ purge $left
  manager_ marks >"$GPUNODE_IN/.marks.after"
  marked=$(more_marks | sed -n 's/^manual //p')
  # shellcheck disable=SC2086 # names
  [ -z "$marked" ] || manager_ automatic $marked
  manager_ installed >"$GPUNODE_IN/.after"
  if same_packages; then
    failure="$failure; the packages are as they were before"
  else
    failure="$failure; it broke off half way" remedy="${remedy:+$remedy; }gpunode uninstall undoes what it has done"
  fi
}

same_packages() { cut -d ' ' -f 1,2 "$GPUNODE_IN/.after" | cmp -s - "$GPUNODE_IN/.packages" && ! grep -q ' broken$' "$GPUNODE_IN/.after"; }

# ---------------------------------------------------------------- for the files of the package managers

# lock_of PID PATH: «COMMAND (PID N) holds PATH»
lock_of() { printf '%s (PID %s) holds %s\n' "$(cat "/proc/$1/comm" 2>/dev/null || echo 'a process')" "$1" "$2"; }

# lock_holder PATH…: who holds one of these lock files; nothing when they are free
lock_holder() {
  for path in "$@"; do
    [ -e "$path" ] || continue
    inode=$(stat -c %i "$path")
    pid=$(awk -v inode=":$inode" '$2 != "->" && substr($6, length($6) - length(inode) + 1) == inode { print $5; exit }' /proc/locks 2>/dev/null)
    [ -z "$pid" ] || { lock_of "$pid" "$path" && return; }
  done
}

# pid_holder PATH…: the same for files that hold the PID of a process which may be gone
pid_holder() {
  for path in "$@"; do
    pid=$(cat "$path" 2>/dev/null)
    { [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; } || continue
    lock_of "$pid" "$path" && return
  done
}

# wait_for_lock: until nobody else holds that of the package manager
wait_for_lock() {
  waited=0
  limit=$(word wait)
  while holder=$(manager_ holder) && [ -n "$holder" ]; do
    [ "$waited" -gt 0 ] || say note "waiting for the package manager: $holder"
    [ "$waited" -lt "${limit:-300}" ] || {
      say locked "$holder"
      finish failed "the package manager is locked: $holder" "let it end (unattended upgrades can take minutes), then run again"
    }
    sleep 2
    waited=$((waited + 2))
  done
}

# the proxy for package managers that read it from the environment, which only root can see
use_proxy() {
  proxy=$(word proxy)
  [ -z "$proxy" ] || export http_proxy="$proxy" https_proxy="$proxy"
}

# alone: whether the sources of this request are the only ones that may be asked; then they are a folder of their own
alone() { [ "$(word alone)" = 1 ] && named_sources; }

# coming: whether lists are read into a folder of the question's own: of repositories that the plan writes before this
# transaction, or of all, where the node has none
coming() { [ -e "$GPUNODE_IN/coming" ]; }

# lay_out FOLDER: the files of that folder of sources into .laid, as they are once those that come are there; these and
# their keys into .coming
lay_out() {
  local name path
  mkdir -p "$GPUNODE_IN/.laid" "$GPUNODE_IN/.coming"
  cp "$1"/*.* "$GPUNODE_IN/.laid/" 2>/dev/null
  while read -r name path; do
    [ "${path%/*}" != "$1" ] || rm -f "$GPUNODE_IN/.laid/${path##*/}"
    [ "$name" = - ] || cp "$GPUNODE_IN/$name" "$GPUNODE_IN/.coming/${path##*/}"
  done <"$GPUNODE_IN/coming"
  requested coming | while read -r name path; do
    [ "$name" = - ] || sed -i "s|$path|$GPUNODE_IN/.coming/${path##*/}|g" "$GPUNODE_IN/.coming"/*
  done
  requested coming | while read -r name path; do
    [ "$name" = - ] || [ "${path%/*}" != "$1" ] || cp "$GPUNODE_IN/.coming/${path##*/}" "$GPUNODE_IN/.laid/"
  done
}

# source_file PATH: where a sources file of the request is to be read
source_file() { if [ -e "$GPUNODE_IN/.coming/${1##*/}" ]; then echo "$GPUNODE_IN/.coming/${1##*/}"; else echo "$1"; fi; }

# the source files of this request, as a folder that stands in place of the node's own
named_sources() {
  mkdir -p "$GPUNODE_IN/.sources"
  requested refresh | while read -r path; do
    path=$(source_file "$path")
    [ ! -e "$path" ] || cp "$path" "$GPUNODE_IN/.sources/"
  done
}

# repositories: the names of those in the request's source files, of dnf and zypper
repositories() { requested refresh | while read -r path; do sed -n 's/^\[\(.*\)\]$/\1/p' "$(source_file "$path")" 2>/dev/null; done; }

# rpm_recover: rpm's database can be read
rpm_recover() {
  rpm -qa >/dev/null 2>>"$log" || rpm --rebuilddb >>"$log" 2>&1 || fail "the database of rpm is damaged" "run rpm --rebuilddb on the node"
}

# the first source file of the request that does not exist
missing_source() {
  requested refresh | while read -r path; do
    [ -e "$(source_file "$path")" ] || { echo "$path"; break; }
  done
}

sources_there() {
  missing=$(missing_source)
  [ -z "$missing" ] || fail "the sources file $missing does not exist" "run the step that writes it first (the role's sources option)"
}

wrong_signature() {
  ! asking || unasked "its signature does not fit its key: $1"
  fail "the signature of the repository in $(requested refresh | tr '\n' ' ')does not fit its key: $1" \
    "check sources.NAME.key and fingerprint in gpunode.yml; nothing was installed"
}

unreadable_source() {
  ! asking || unasked "the node cannot read it: $1"
  fail "the repository in $(requested refresh | tr '\n' ' ')cannot be read: $1" \
    "check its URL, the network and the proxy from the node; nothing was installed"
}

# ---------------------------------------------------------------- what is to be done

# which of install and remove is not yet so, as sentences; also fills .to_remove and .to_hold
differences() {
  : >"$GPUNODE_IN/.to_hold"
  cut -d ' ' -f 1,3 "$GPUNODE_IN/.before" >"$GPUNODE_IN/.holds"
  marks_now
  requested install | while read -r name version hold; do
    now=$(installed_of "$name" "$version")
    case $now in
      *" broken") echo "finish installing $name" ;;
      '') echo "install $name$([ "$version" = - ] || echo " $version")" ;;
      *) fits "${now%% *}" "$version" || echo "change $name from ${now%% *} to $version" ;;
    esac
    [ "$hold" != hold ] || [ "${now##* }" = hold ] || {
      echo "$name" >>"$GPUNODE_IN/.to_hold"
      echo "hold $name"
    }
  done
  requested unhold | while read -r name; do
    grep -qFx "$name hold" "$GPUNODE_IN/.holds" && echo "hold $name no longer"
  done
  # shellcheck disable=SC2046
  [ -z "$(requested purge)" ] || manager_ remnants $(requested purge) | sed "s/^/forget the configuration of /"
  requested automatic | grep -Fx -f "$GPUNODE_IN/.manual" | sed 's/^/forget that somebody asked for /'
  requested keys | grep -Fx -f "$GPUNODE_IN/.keys" | sed 's/^/forget the key /'
  requested streams | while read -r module stream; do
    [ "$(manager_ stream "$module")" = "${stream#-}" ] ||
      if [ "$stream" = - ]; then echo "reset module $module"; else echo "enable stream $stream of module $module"; fi
  done
  requested remove | while read -r name; do
    awk -v name="$name" '$1 == name { print name }' "$GPUNODE_IN/.before"
  done >"$GPUNODE_IN/.to_remove"
  sed 's/^/remove /' "$GPUNODE_IN/.to_remove"
}

# fits VERSION WANTED: whether it is the one asked for; the trailing * of a version is a pattern by design
fits() {
  # shellcheck disable=SC2254
  case $1 in
    $2) return 0 ;;
  esac
  [ "$2" = - ]
}

# installed_of NAME WANTED: «VERSION hold|broken|-» of the package; of several versions side by side the one that fits
installed_of() {
  awk -v name="$1" '$1 == name { print $2, $3 }' "$GPUNODE_IN/.before" >"$GPUNODE_IN/.of"
  while read -r is state; do
    fits "$is" "$2" && echo "$is $state" && return
  done <"$GPUNODE_IN/.of"
  tail -n 1 "$GPUNODE_IN/.of"
}

refuse() {
  undo_changes
  finish refused "$@"
}

# What the package manager would do beyond the plan: removals nobody asked for, and packages somebody else holds.
refuse_surprises() {
  # of kernel packages one of several versions may be named, as NAME-VERSION
  { cat "$GPUNODE_IN/.to_remove" && requested may_go && sed -n 's/^\(kernel.*\)-[0-9][^-]*-[^-]*$/\1/p; s/^\(kernel.*\)-[0-9][^-]*$/\1/p' "$GPUNODE_IN/.to_remove"; } >"$GPUNODE_IN/.may_go"
  extra=$(sed -n 's/^remove //p' "$GPUNODE_IN/.would" | grep -Fxv -f "$GPUNODE_IN/.may_go" | tr '\n' ' ')
  [ -z "$extra" ] || refuse "the package manager would also remove ${extra% }" \
    "remove it yourself if it may go, or choose other versions; gpunode removes only what its plan shows"
  held=$(awk 'FILENAME == ARGV[1] { hold[$1] = $3; next } hold[$2] == "hold" { print $2 }' "$GPUNODE_IN/.before" "$GPUNODE_IN/.would")
  for name in $held; do
    # of a transaction that failed at its end, too
    journal_lines | awk '/"op":"packages","phase":"(done|failed)"/' | grep -q "\"held\":\[[^]]*\"$name\"" ||
      refuse "$name has to change, and is held, not by gpunode" "$(manager_ unhold "$name"), if it may change"
  done
}

refuse_full_disk() {
  # shellcheck disable=SC2046  # two numbers
  set -- $(manager_ needs)
  cache=$(df -Pk /var/cache | awk 'NR == 2 { print $1, $4 }')
  usr=$(df -Pk /usr | awk 'NR == 2 { print $1, $4 }')
  fetch=$1 unpack=$2
  [ "${cache% *}" != "${usr% *}" ] || unpack=$((fetch + unpack))
  [ "$fetch" -le "${cache#* }" ] ||
    fail "/var/cache has $((${cache#* } / 1024)) MiB free and the packages need $((fetch / 1024)) MiB" "make room, then run again; nothing was installed"
  [ "$unpack" -le "${usr#* }" ] ||
    fail "/usr has $((${usr#* } / 1024)) MiB free and the packages need $((unpack / 1024)) MiB" "make room, then run again; nothing was installed"
}

# ---------------------------------------------------------------- the transaction

# would: what the package manager would do, in .would, judged, with its packages fetched
would() {
  manager_ simulate >"$GPUNODE_IN/.would" || return
  refuse_surprises
  refuse_full_disk
  grep -q '^install ' "$GPUNODE_IN/.would" || return 0
  downloading=1
  manager_ download || return
  downloading=
}

# older_lists: reads all again where they may be older than the archive
older_lists() {
  [ -z "${refreshed_all:-}" ] && { [ -z "${downloading:-}" ] || lacks_files; } || return
  downloading=
  manager_ refresh_all
}

# lacks_files: whether an archive answered that it does not have a package
lacks_files() { grep -Eq '404|not found on medium' "$GPUNODE_IN/.transaction"; }

# cannot: why not, once all lists were read again; an archive in the middle of an update lists what it does not have yet
cannot() {
  if [ -z "${downloading:-}" ]; then
    cat "$GPUNODE_IN/.simulated" >>"$log"
    fail "the package manager cannot do it: $(manager_ why_not)" "check names and versions in the plan against the repository"
  fi
  reason=$(first_of '^e: failed to fetch|status code: 404|not found on medium|failed retrieving file' "$GPUNODE_IN/.transaction")
  ! lacks_files || fail "the archive lists a package that it does not have, as in the middle of an update: $reason; nothing was changed" \
    "run again later, when its lists are whole; or use another mirror; or hold the running kernel, where it is a package for a newer one"
  reason=${reason:-$(manager_ printed)}
  fail "the packages could not be fetched: ${reason:-the download ended without a reason}; nothing was changed" "check the network and the proxy from the node, then run again"
}

transaction() {
  local reason
  cut -d ' ' -f 1,2 "$GPUNODE_IN/.before" >"$GPUNODE_IN/.packages"
  manager_ marks >"$GPUNODE_IN/.marks"
  manager_ refresh
  would || { older_lists && would; } || cannot
  remember_packages
  keep_files
  folders_of_old >"$kept/folders"
  # shellcheck disable=SC2046 # names
  manager_ remnants $(cut -d ' ' -f 2 "$GPUNODE_IN/.would") >"$kept/remnants"
  journal packages intent ",\"install\":$(requested install | cut -d ' ' -f 1 | json_list),\"remove\":$(json_list <"$GPUNODE_IN/.to_remove")"
  begun=1
  orphans >"$GPUNODE_IN/.orphans"
  manager_ commit || {
    half=1
    dkms_build
    reason=$(manager_ printed)
    fail "the package manager failed: ${reason:-it ended without a reason, as when it is killed}" "see the log, then run again"
  }
  give_files_back
  orphans | grep -Fxv -f "$GPUNODE_IN/.orphans" | while read -r unit; do attempt systemctl stop "$unit" || say note "$unit still runs: $why"; done
}

# orphans: units that run though their file is gone, as Docker's socket does when its package goes: until it is stopped the
# service does not start again, once the package is back
orphans() { ! have systemctl || systemctl list-units --plain --no-legend --state=active --type=service,socket,timer,path 2>/dev/null | awk '$2 == "not-found" { print $1 }'; }

# keep_files, give_files_back: configuration that is a person's by now, and that its package would take along
keep_files() {
  for file in $(requested keep); do
    [ ! -e "$file" ] || cp -a "$file" "$kept/$(printf '%s' "$file" | tr / _)" || fail "cannot keep a copy of $file" "make room on the file system of /var"
  done
}

give_files_back() {
  for file in $(requested keep); do
    copy=$kept/$(printf '%s' "$file" | tr / _)
    [ -e "$copy" ] && [ ! -e "$file" ] || continue
    { cp -a "$copy" "$file.gpunode" && mv "$file.gpunode" "$file"; } || fail "$file is gone with its package, and could not be put back" "a copy is in $copy"
    say note "$file was put back: its package took it along"
  done
}

main() {
  manager=$(package_manager)
  [ -n "$manager" ] || finish refused "no package manager was found (apt-get, dnf, yum, zypper, pacman)" "use a distribution with one of these package managers"
  manager_ installed >"$GPUNODE_IN/.before"
  differences >"$GPUNODE_IN/.differences"
  dkms_missing >"$GPUNODE_IN/.undone"
  ! asking || [ "$manager" != apt ] || apt_has_lists || { unread=1 && : >>"$GPUNODE_IN/coming"; }
  ! asking || coming || list_offers
  if [ -z "${unread:-}" ] && [ ! -s "$GPUNODE_IN/.differences" ] && [ ! -s "$GPUNODE_IN/.undone" ] &&
    [ -z "$(unfinished packages)" ]; then
    finish unchanged "all packages are up to date"
  fi
  manager_ options
  checking && in_check_mode
  need_root
  lock
  wait_for_lock
  keep_gpus || say note "package scripts run systemctl daemon-reload: the running containers $affected_containers lose their GPUs"
  manager_ recover
  close_packages
  manager_ installed >"$GPUNODE_IN/.before"
  differences >"$GPUNODE_IN/.differences"
  if grep -qvE '^(hold|forget) ' "$GPUNODE_IN/.differences"; then
    transaction
    # all of them: a change of version may have lifted a hold
    requested install | awk '$3 == "hold" { print $1 }' >"$GPUNODE_IN/.to_hold"
  elif [ -s "$GPUNODE_IN/.differences" ]; then
    journal packages intent ",\"hold\":$(json_list <"$GPUNODE_IN/.to_hold")"
    begun=1
  fi
  # shellcheck disable=SC2046
  [ ! -s "$GPUNODE_IN/.to_hold" ] || manager_ hold $(cat "$GPUNODE_IN/.to_hold") || fail "the packages could not be held"
  taken_back
  dkms_build
  manager_ installed >"$GPUNODE_IN/.after"
  [ -z "${begun:-}" ] || { came_along && journal packages 'done' "$(changes_json)" && forget; }
  say_changes
  # what was not built before; modules of packages that came now belong to them, whether their scripts built them or we
  [ -z "${built:-}" ] || grep -Fx -f "$GPUNODE_IN/.undone" "$GPUNODE_IN/.unbuilt" | say_built built
  cmp -s "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" && [ -z "${built:-}${back:-}" ] && finish unchanged "all packages are up to date"
  ! cmp -s "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" || [ -n "${back:-}" ] || finish changed "the kernel modules are built"
  finish changed "packages are up to date"
}

main
