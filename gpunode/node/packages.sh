#!/bin/sh
# One package transaction: recover what was interrupted, wait for the lock, refresh, install and remove in one go,
# hold, check that DKMS built what was installed, and write to the journal what was there before.
# Request and output: core/requests_packages.py.  Runs behind common.sh and devices.sh.
#
# A package manager is seven functions NAME_…: installed, wait, recover, configured, refresh, simulate, commit.
# «Simulate» prints what would happen as lines `install NAME VERSION` and `remove NAME`.

log=$GPUNODE_IN/.log

# ---------------------------------------------------------------- apt and dpkg

apt_options() {
  # A file and not -o options: a proxy may hold a password, and arguments are public.  -c is read after apt.conf.d.
  proxy=$(word proxy)
  cat >"$GPUNODE_IN/.apt.conf" <<CONF
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
// the list of packages is the plan's: a server gets no X server because a driver package recommends one
APT::Install-Recommends "false";
APT::Get::allow-downgrades "true";
APT::Update::Error-Mode "any";
Dpkg::Use-Pty "0";
Dpkg::Options:: "--force-confold";
Dpkg::Options:: "--force-confdef";
DPkg::Lock::Timeout "60";
Dir::Etc::preferences "$GPUNODE_IN/.preferences";
CONF
  apt_preferences
  [ -z "$proxy" ] || printf 'Acquire::http::Proxy "%s";\nAcquire::https::Proxy "%s";\n' "$proxy" "$proxy" >>"$GPUNODE_IN/.apt.conf"
  export DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical UCF_FORCE_CONFFOLD=1 APT_LISTCHANGES_FRONTEND=none
  # needrestart would restart container engines because some library changed; restarts are steps of the plan
  export NEEDRESTART_SUSPEND=1 NEEDRESTART_MODE=l
}

# Driver packages depend on each other in exactly their own version, and apt takes the newest candidate for a
# dependency and then gives up: for this transaction, any package that exists in a version asked for has it as candidate.
# («?*» and not «*»: apt takes that for a rule about repositories.)
apt_preferences() {
  {
    cat /etc/apt/preferences 2>/dev/null
    echo
    requested install | awk '$2 != "-" && !seen[$2]++ { printf "Package: ?*\nPin: version %s\nPin-Priority: 1001\n\n", $2 }'
  } >"$GPUNODE_IN/.preferences"
}

apt_() { apt-get -c "$GPUNODE_IN/.apt.conf" "$@" </dev/null 9>&-; }

# lines `NAME VERSION hold|broken|-` of what is installed, wholly or half; foreign architectures as NAME:ARCH
apt_installed() {
  dpkg-query -W -f '${Package} ${Architecture} ${Version} ${db:Status-Abbrev}\n' 2>/dev/null |
    awk -v native="$(dpkg --print-architecture)" '
      substr($4, 2, 1) !~ /[nc]/ {
        print $1 ($2 == native || $2 == "all" ? "" : ":" $2), $3, (substr($4, 2, 1) != "i" ? "broken" : $4 ~ /^h/ ? "hold" : "-")
      }'
}

# who holds a lock of dpkg or apt, as «COMMAND (PID N)»; nothing when they are free
apt_holder() {
  for path in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock; do
    [ -e "$path" ] || continue
    inode=$(stat -c %i "$path")
    pid=$(awk -v inode=":$inode" '$2 != "->" && substr($6, length($6) - length(inode) + 1) == inode { print $5; exit }' /proc/locks 2>/dev/null)
    [ -n "$pid" ] || continue
    printf '%s (PID %s) holds %s\n' "$(cat "/proc/$pid/comm" 2>/dev/null || echo 'a process')" "$pid" "$path"
    return
  done
}

apt_wait() {
  waited=0
  limit=$(word wait)
  while holder=$(apt_holder) && [ -n "$holder" ]; do
    [ "$waited" -gt 0 ] || say note "waiting for the package manager: $holder"
    [ "$waited" -lt "${limit:-300}" ] || {
      say locked "$holder"
      finish failed "the package manager is locked: $holder" "let it end (unattended-upgrades can take minutes), then run again"
    }
    sleep 2
    waited=$((waited + 2))
  done
}

apt_recover() {
  [ -n "$(dpkg --audit 2>/dev/null)" ] || [ -n "$(ls /var/lib/dpkg/updates 2>/dev/null)" ] || return 0
  say note "dpkg was interrupted: dpkg --configure -a"
  dpkg --configure -a --force-confold --force-confdef >>"$log" 2>&1 </dev/null 9>&- && return
  apt_ -y --fix-broken install >>"$log" 2>&1 ||
    fail "dpkg was interrupted and cannot be finished" "run dpkg --configure -a on the node and mend what it names"
}

# the source files of this request, as a folder that apt reads in place of sources.list.d
apt_named_sources() {
  mkdir -p "$GPUNODE_IN/.sources"
  requested refresh | while read -r path; do
    [ ! -e "$path" ] || cp "$path" "$GPUNODE_IN/.sources/"
  done
}

# whether apt can be asked: every named source stands there and its lists have been fetched
apt_configured() {
  requested refresh | while read -r path; do
    [ -e "$path" ] || exit 1
  done || return 1
  apt_named_sources
  if [ -n "$(requested refresh)" ]; then
    # shellcheck disable=SC2016  # $(FILENAME) is apt's
    lists=$(apt-get indextargets -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$GPUNODE_IN/.sources" \
      --format '$(FILENAME)' 'Created-By: Packages' 2>/dev/null)
    [ -n "$lists" ] || return 1
    printf '%s\n' "$lists" | while read -r path; do
      ls "$path"* >/dev/null 2>&1 || exit 1
    done || return 1
  fi
  apt_has_lists
}

apt_has_lists() { ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; }

apt_refresh() {
  if [ -n "$(requested refresh)" ]; then
    requested refresh | while read -r path; do
      [ -e "$path" ] || { echo "$path"; break; }
    done >"$GPUNODE_IN/.missing"
    [ ! -s "$GPUNODE_IN/.missing" ] ||
      fail "the sources file $(cat "$GPUNODE_IN/.missing") does not exist" "run the step that writes it first (the role's sources option)"
    apt_named_sources
    apt_ update -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$GPUNODE_IN/.sources" \
      -o APT::Get::List-Cleanup=0 >"$GPUNODE_IN/.update" 2>&1 || apt_update_failed
    # apt before 2.1.13 has no Error-Mode and exits 0
    ! grep -Eq '^(E: |W: (Failed to fetch|GPG error))' "$GPUNODE_IN/.update" || apt_update_failed
    cat "$GPUNODE_IN/.update" >>"$log"
  fi
  apt_has_lists || apt_refresh_all
}

# All lists of the node.  A repository of somebody else's that is down is not ours to judge: a note.
apt_refresh_all() {
  refreshed_all=1
  apt_ update >"$GPUNODE_IN/.update" 2>&1 || say note "apt-get update: $(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | head -n 1)"
  cat "$GPUNODE_IN/.update" >>"$log"
}

apt_update_failed() {
  cat "$GPUNODE_IN/.update" >>"$log"
  names=$(requested refresh | tr '\n' ' ')
  why=$(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | grep -Ei 'sign|key|release file|fetch|resolve|connect' | head -n 1)
  [ -n "$why" ] || why=$(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | head -n 1)
  if grep -Eqi 'NO_PUBKEY|BADSIG|EXPKEYSIG|EXPSIG|REVKEYSIG|not signed|signatures? (were|was|could)|GPG error' "$GPUNODE_IN/.update"; then
    fail "the signature of the repository in ${names% } does not fit its key: $why" \
      "check sources.NAME.key and fingerprint in gpunode.yml; nothing was installed"
  fi
  fail "the repository in ${names% } cannot be read: $why" \
    "check its URL, the network and the proxy from the node; nothing was installed"
}

# the words for apt-get install: NAME=VERSION to have, NAME- to remove
apt_words() {
  requested install | while read -r name version _; do
    if [ "$version" = - ]; then echo "$name"; else echo "$name=$version"; fi
  done
  while read -r name; do echo "$name-"; done <"$GPUNODE_IN/.to_remove"
}

apt_simulate() {
  # shellcheck disable=SC2046  # words by design, their letters were checked by the builder of the request
  apt_ -s install --allow-change-held-packages $(apt_words) >"$GPUNODE_IN/.simulated" 2>&1 || return 1
  sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/install \1 \2/p; s/^Inst \([^ ]*\) (\([^ ]*\) .*/install \1 \2/p; s/^Remv \([^ ]*\) .*/remove \1/p' \
    "$GPUNODE_IN/.simulated"
}

apt_why_not() {
  grep -E '^E: |^ [^ ]+ : |is held|Depends|Conflicts|no installation candidate' "$GPUNODE_IN/.simulated" | head -n 4 | tr -s ' \n' ' '
  awk '$3 == "hold" { print $1 }' "$GPUNODE_IN/.before" | while read -r name; do
    ! grep -qwF -e "$name" "$GPUNODE_IN/.simulated" || printf '(%s is held: apt-mark unhold %s, if it may change) ' "$name" "$name"
  done
}

# KiB to fetch and KiB to unpack of what would be installed.  (Not from apt-get install --assume-no: where apt has
# nothing to ask, it does not stop there.)
apt_needs() {
  # shellcheck disable=SC2046
  set -- $(sed -n 's/^install \([^ ]*\) \(.*\)/\1=\2/p' "$GPUNODE_IN/.would")
  [ $# -gt 0 ] || { echo 0 0 && return; }
  apt-cache show "$@" 2>/dev/null | awk '/^Size: / { fetch += $2 / 1024 } /^Installed-Size: / { unpack += $2 } END { printf "%d %d\n", fetch, unpack }'
}

apt_commit() {
  # shellcheck disable=SC2046
  apt_ -y install --allow-change-held-packages $(apt_words) >"$GPUNODE_IN/.apt" 2>&1
  result=$?
  cat "$GPUNODE_IN/.apt" >>"$log"
  return $result
}

apt_hold() { apt-mark hold "$@" >>"$log" 2>&1; }

# ---------------------------------------------------------------- any package manager

# fail MESSAGE FIX: with the end of the log, and the journal closed if it was opened
fail() {
  [ -z "${begun:-}" ] || {
    manager_ installed >"$GPUNODE_IN/.after"
    journal packages failed ",\"message\":$(json_text "$1")$(changes_json)"
  }
  tail -n 40 "$log" 2>/dev/null
  finish failed "$1" "${2:-}"
}

manager_() {
  function=$1
  shift
  "${manager}_$function" "$@"
}

# which of install and remove is not yet so, as sentences; also fills .to_remove and .to_hold
differences() {
  : >"$GPUNODE_IN/.to_hold"
  requested install | while read -r name version hold; do
    now=$(awk -v name="$name" '$1 == name { print $2, $3 }' "$GPUNODE_IN/.before")
    # shellcheck disable=SC2254  # the trailing * of a version is a pattern by design
    case $now in
      *" broken") echo "finish installing $name" ;;
      '') echo "install $name$([ "$version" = - ] || echo " $version")" ;;
      *) [ "$version" = - ] || case "${now%% *}" in
        $version) ;;
        *) echo "change $name from ${now%% *} to $version" ;;
      esac ;;
    esac
    [ "$hold" != hold ] || [ "${now##* }" = hold ] || {
      echo "$name" >>"$GPUNODE_IN/.to_hold"
      [ -z "$now" ] || echo "hold $name"
    }
  done
  requested remove | while read -r name; do
    awk -v name="$name" '$1 == name { print name }' "$GPUNODE_IN/.before"
  done >"$GPUNODE_IN/.to_remove"
  sed 's/^/remove /' "$GPUNODE_IN/.to_remove"
}

# What the package manager would do beyond the plan: removals nobody asked for, and packages somebody else holds.
refuse_surprises() {
  extra=$(sed -n 's/^remove //p' "$GPUNODE_IN/.would" | grep -Fxv -f "$GPUNODE_IN/.to_remove" | tr '\n' ' ')
  [ -z "$extra" ] || finish refused "the package manager would also remove ${extra% }" \
    "remove it yourself if it may go, or choose other versions; gpunode removes only what its plan shows"
  held=$(awk 'NR == FNR { hold[$1] = $3; next } hold[$2] == "hold" { print $2 }' "$GPUNODE_IN/.before" "$GPUNODE_IN/.would")
  for name in $held; do
    grep -s '"op":"packages","phase":"done"' "$GPUNODE_STATE/journal.jsonl" | grep -q "\"held\":\[[^]]*\"$name\"" ||
      finish refused "$name has to change, and is held by somebody else than gpunode" "apt-mark unhold $name, if it may change"
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

# what differs between .before and .after, as members of a journal record: the record that an undo needs
changes_json() {
  awk '
    function item(text, more) { return text (text == "" ? "" : ",") more }
    NR == FNR { before[$1] = $2; hold[$1] = $3; next }
    { after[$1] = 1 }
    !($1 in before) { added = item(added, "{\"name\":\"" $1 "\",\"version\":\"" $2 "\"}") }
    ($1 in before) && before[$1] != $2 { changed = item(changed, "{\"name\":\"" $1 "\",\"from\":\"" before[$1] "\",\"to\":\"" $2 "\"}") }
    $3 == "hold" && hold[$1] != "hold" { held = item(held, "\"" $1 "\"") }
    END {
      for (name in before) if (!(name in after)) removed = item(removed, "{\"name\":\"" name "\",\"version\":\"" before[name] "\"}")
      printf ",\"added\":[%s],\"changed\":[%s],\"removed\":[%s],\"held\":[%s]", added, changed, removed, held
    }' "$GPUNODE_IN/.before" "$GPUNODE_IN/.after"
}

say_changes() {
  awk '
    NR == FNR { before[$1] = $2; hold[$1] = $3; next }
    { after[$1] = 1 }
    !($1 in before) { print "installed " $1 " " $2 }
    ($1 in before) && before[$1] != $2 { print "changed " $1 " from " before[$1] " to " $2 }
    $3 == "hold" && hold[$1] != "hold" { print "held " $1 }
    END { for (name in before) if (!(name in after)) print "removed " name " " before[name] }' \
    "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" | sort | while read -r line; do say changed "$line"; done
}

# ---------------------------------------------------------------- DKMS

# lines `MODULE VERSION KERNEL STATE` of the nvidia modules; dkms 2 writes «nvidia, 1, 6.1, x86_64: …», dkms 3 «nvidia/1, 6.1, …»
dkms_nvidia() {
  have dkms || return 0
  dkms status 2>/dev/null | grep '^nvidia' | sed 's|/|, |; s/: */, /; s/,  */ /g' |
    awk 'NF >= 5 { print $1, $2, $3, $5 } NF < 5 { print $1, $2, "-", $NF }'
}

# lines `MODULE VERSION KERNEL` that should be built and are not, for every kernel whose headers are there
dkms_missing() {
  dkms_nvidia >"$GPUNODE_IN/.dkms"
  cut -d ' ' -f 1,2 "$GPUNODE_IN/.dkms" | sort -u | while read -r module version; do
    for tree in /lib/modules/*; do
      [ -d "$tree/build/" ] || continue
      kernel=${tree##*/}
      grep -q "^$module $version $kernel installed" "$GPUNODE_IN/.dkms" || echo "$module $version $kernel"
    done
  done
}

# Package scripts may skip a kernel whose headers came in the same transaction, or fail for one and still succeed.
dkms_build() {
  dkms_missing >"$GPUNODE_IN/.unbuilt"
  [ -s "$GPUNODE_IN/.unbuilt" ] || return 0
  while read -r module version kernel; do
    say note "building $module $version for kernel $kernel"
    dkms install "$module/$version" -k "$kernel" >>"$log" 2>&1 </dev/null 9>&- && built=1 && continue
    cat "/var/lib/dkms/$module/$version/build/make.log" "/var/lib/dkms/$module/$version/$kernel"/*/log/make.log 2>/dev/null |
      tail -n 60 >>"$log"
    fail "DKMS could not build $module $version for kernel $kernel: $(grep -E 'error:|Error!|No rule' "$log" | tail -n 1)" \
      "see the log; often the compiler or the headers do not fit the kernel, or the branch is too old for it"
  done <"$GPUNODE_IN/.unbuilt"
  unbuilt=$(dkms_missing)
  [ -z "$unbuilt" ] || fail "DKMS says that $(printf '%s' "$unbuilt" | tr '\n' ';') is not installed" "run dkms status on the node"
}

# ---------------------------------------------------------------- the transaction

in_check_mode() {
  while read -r line; do say changed "$line"; done <"$GPUNODE_IN/.differences"
  if ! manager_ configured; then
    say note "the repository is not configured yet: the package manager was not asked"
  elif manager_ simulate >"$GPUNODE_IN/.would"; then
    refuse_surprises
  else
    finish failed "the package manager cannot do it: $(manager_ why_not)" "see the plan's package list"
  fi
  finish changed "$(wc -l <"$GPUNODE_IN/.differences") change(s) to packages would be made"
}

transaction() {
  manager_ refresh
  manager_ simulate >"$GPUNODE_IN/.would" || {
    [ -n "${refreshed_all:-}" ] || manager_ refresh_all # the lists may be older than the archive
    manager_ simulate >"$GPUNODE_IN/.would" ||
      fail "the package manager cannot do it: $(manager_ why_not)" "check names and versions in the plan against the repository"
  }
  refuse_surprises
  refuse_full_disk
  journal packages intent ",\"install\":$(requested install | cut -d ' ' -f 1 | json_list),\"remove\":$(json_list <"$GPUNODE_IN/.to_remove")"
  begun=1
  manager_ commit || {
    grep -q '404' "$GPUNODE_IN/.apt" && [ -z "${refreshed_all:-}" ] && manager_ refresh_all && manager_ commit
  } || {
    dkms_build
    fail "the package manager failed: $(grep -E '^(dpkg: error|E:) ' "$log" | head -n 1)" "see the log, then run again"
  }
}

main() {
  if have apt-get; then
    manager=apt
  else
    for other in dnf zypper pacman; do
      ! have "$other" || finish refused "this node's package manager is $other, which gpunode cannot drive yet" "use Debian or Ubuntu"
    done
    finish refused "no package manager was found (apt-get)" "use Debian or Ubuntu"
  fi
  manager_ installed >"$GPUNODE_IN/.before"
  differences >"$GPUNODE_IN/.differences"
  if [ ! -s "$GPUNODE_IN/.differences" ] && [ -z "$(dkms_missing)" ] && [ -z "$(unfinished packages)" ]; then
    finish unchanged "all packages are as wanted"
  fi
  manager_ options
  checking && in_check_mode
  need_root
  lock
  manager_ wait
  # shellcheck disable=SC2154 # by keep_gpus
  keep_gpus || say note "package scripts run systemctl daemon-reload: the running containers $losers lose their GPUs"
  manager_ recover
  close_interrupted packages 'interrupted; what dpkg had begun was finished by a later run'
  manager_ installed >"$GPUNODE_IN/.before"
  differences >"$GPUNODE_IN/.differences"
  if grep -qv '^hold ' "$GPUNODE_IN/.differences"; then
    transaction
    # all of them: a change of version may have lifted a hold
    requested install | awk '$3 == "hold" { print $1 }' >"$GPUNODE_IN/.to_hold"
  elif [ -s "$GPUNODE_IN/.differences" ]; then
    journal packages intent ",\"hold\":$(json_list <"$GPUNODE_IN/.to_hold")"
    begun=1
  fi
  # shellcheck disable=SC2046
  [ ! -s "$GPUNODE_IN/.to_hold" ] || manager_ hold $(cat "$GPUNODE_IN/.to_hold") || fail "the packages could not be held"
  dkms_build
  manager_ installed >"$GPUNODE_IN/.after"
  [ -z "${begun:-}" ] || journal packages 'done' "$(changes_json)"
  say_changes
  [ -z "${built:-}" ] || say changed "built $(tr '\n' ';' <"$GPUNODE_IN/.unbuilt")"
  cmp -s "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" && [ -z "${built:-}" ] && finish unchanged "all packages are as wanted"
  finish changed "packages are as wanted"
}

main
