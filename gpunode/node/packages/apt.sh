# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034  # $log is common.sh's, $refreshed_all is for packages.sh
# shellcheck disable=SC2046  # words by design: names of packages, their letters were checked by the builder of the request
# apt and dpkg, for packages.sh.

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
// a held package changes when another one needs it; who holds it is judged before anything is done
APT::Ignore-Hold "true";
APT::Update::Error-Mode "any";
Dpkg::Use-Pty "0";
Dpkg::Options:: "--force-confold";
Dpkg::Options:: "--force-confdef";
DPkg::Lock::Timeout "60";
Dir::Etc::preferences "$GPUNODE_IN/.preferences";
CONF
  ! coming || apt_lay_out
  ! alone || printf 'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "%s";\n' "$GPUNODE_IN/.sources" >>"$GPUNODE_IN/.apt.conf"
  apt_preferences
  [ -z "$proxy" ] || printf 'Acquire::http::Proxy "%s";\nAcquire::https::Proxy "%s";\n' "$proxy" "$proxy" >>"$GPUNODE_IN/.apt.conf"
  export DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical UCF_FORCE_CONFFOLD=1 APT_LISTCHANGES_FRONTEND=none
  # needrestart would restart container engines because some library changed; restarts are steps of the plan
  export NEEDRESTART_SUSPEND=1 NEEDRESTART_MODE=l
}

# Repositories that come are read into lists of the question's own, next to the node's; nothing is written elsewhere.
apt_lay_out() {
  local lists parts
  eval "$(apt-config shell lists Dir::State::lists/d parts Dir::Etc::sourceparts/d)"
  lay_out "${parts%/}"
  laid_lists=$GPUNODE_IN/.lists
  cp -as "${lists%/}" "$laid_lists" 2>/dev/null
  rm -rf "$laid_lists/lock" "$laid_lists/partial"
  mkdir -p "$laid_lists/partial"
  cat >>"$GPUNODE_IN/.apt.conf" <<CONF
Dir::Etc::sourceparts "$GPUNODE_IN/.laid";
Dir::State::lists "$laid_lists";
Dir::Cache::pkgcache "$GPUNODE_IN/.pkgcache.bin";
Dir::Cache::srcpkgcache "";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "0";
Acquire::http::Timeout "10";
Acquire::https::Timeout "10";
CONF
}

# Driver packages depend on each other in exactly their own version, and apt takes the newest candidate for a
# dependency and then gives up: for this transaction, any package that exists in a version asked for has it as candidate.
# Which these are the lists of the request's sources say; of a version that is from elsewhere, all packages that there
# are.  («?*» and not «*»: apt takes that for a rule about repositories.  Each costs it a fifth of a second and more.)
apt_preferences() {
  requested install | awk '$2 != "-" && !seen[$2]++ { print $2 }' >"$GPUNODE_IN/.versions"
  {
    cat /etc/apt/preferences 2>/dev/null
    echo
    apt_lists | while read -r path; do
      for file in "$path"*; do /usr/lib/apt/apt-helper cat-file "$file" 2>/dev/null; done
    done | awk '
      FILENAME == ARGV[1] { names[$1] = ""; next }
      $1 == "Package:" { name = $2 }
      $1 == "Version:" {
        for (version in names)
          if (($2 == version || (version ~ /\*$/ && index($2, substr(version, 1, length(version) - 1)) == 1)) && !seen[version, name]++)
            names[version] = names[version] " " name ":any"
      }
      END {
        for (version in names)
          printf "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", names[version] ? substr(names[version], 2) : "?*", version
      }' "$GPUNODE_IN/.versions" -
  } >"$GPUNODE_IN/.preferences"
}

# the lists of the request's sources, each without the ending of its compression
apt_lists() {
  named_sources
  [ -n "$(ls "$GPUNODE_IN/.sources")" ] || return 0
  # shellcheck disable=SC2016  # $(FILENAME) is apt's
  apt_named indextargets --format '$(FILENAME)' 'Created-By: Packages' 2>/dev/null
}

# apt_named WORD…: apt-get with the request's sources alone.  It leaves the cache alone, which is of all of them: to read
# that again costs half a second of Debian's archive.
apt_named() {
  apt_ "$@" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$GPUNODE_IN/.sources" \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
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

apt_holder() {
  lock_holder /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock
}

apt_recover() {
  [ -n "$(dpkg --audit 2>/dev/null)" ] || [ -n "$(ls /var/lib/dpkg/updates 2>/dev/null)" ] || return 0
  say note "dpkg was interrupted: dpkg --configure -a"
  dpkg --configure -a --force-confold --force-confdef >>"$log" 2>&1 </dev/null 9>&- && return
  # of what dpkg wants to have again, apt first brings the others to its version
  # shellcheck disable=SC2046 # names
  apt_repair || apt_repair $(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package}\n' 2>/dev/null | sed -n 's/^..R //p') || {
    reason=$(sed -n 's/^E: //p' "$log" | tail -n 1)
    fail "dpkg was interrupted and cannot be finished${reason:+: $reason}" "run dpkg --configure -a on the node and fix what it names"
  }
}

# apt_repair [NAME…]: lets apt put right what is half there; NAME… are fetched again, which it does only where it is asked to
apt_repair() {
  [ $# = 0 ] || set -- --reinstall "$@"
  apt_ -s --fix-broken install "$@" 2>>"$log" | sed -n 's/^Remv \([^ ]*\) .*/\1/p' >"$GPUNODE_IN/.fixed"
  { requested remove && requested may_go; } >"$GPUNODE_IN/.planned"
  gone=$(grep -Fxv -f "$GPUNODE_IN/.planned" "$GPUNODE_IN/.fixed" | tr '\n' ' ')
  [ -z "$gone" ] || refuse "dpkg was interrupted, and to repair it apt would remove ${gone% }" \
    "apt-get --fix-broken install on the node, if that may go; or install what it lacks"
  apt_ -y --fix-broken install "$@" >>"$log" 2>&1 || return
  while read -r name; do back=1 && changed package "$name" "removed $name"; done <"$GPUNODE_IN/.fixed"
}

# whether apt can be asked: every named source stands there and its lists have been fetched
apt_configured() {
  [ -z "$(missing_source)" ] || return 1
  ! coming || { lists_are_fresh || apt_refresh_all; apt_refresh; }
  if [ -n "$(requested refresh)" ]; then
    lists=$(apt_lists)
    [ -n "$lists" ] || return 1
    printf '%s\n' "$lists" | while read -r path; do
      ls "$path"* >/dev/null 2>&1 || exit 1
    done || return 1
  fi
  apt_has_lists
}

apt_has_lists() (
  eval "$(apt-config shell lists Dir::State::lists/d)"
  ls "${laid_lists:-${lists%/}}"/*_Packages* >/dev/null 2>&1
)

# apt_read WORD…: whether all could be read; apt before 2.1.13 has no Error-Mode and exits 0
apt_read() { logged update "$@" && ! grep -Eq '^(E: |W: (Failed to fetch|GPG error))' "$GPUNODE_IN/.update"; }

apt_refresh() {
  apt_has_lists || apt_refresh_all
  if [ -n "$(requested refresh)" ]; then
    sources_there
    named_sources
    [ -n "${all_read:-}" ] || apt_read apt_named update -o APT::Get::List-Cleanup=0 || apt_update_failed
    apt_preferences
  fi
}

# All lists of the node, those of the request among them.  A repository of somebody else's that is down is not ours to judge: a note.
apt_refresh_all() {
  refreshed_all=1
  if apt_read apt_ update; then
    all_read=1
  else
    update_said=$(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | head -n 1)
    [ -z "${unread:-}" ] || apt_has_lists || unasked "the node has no lists of packages, and cannot read them: $update_said"
    say note "apt-get update: $update_said"
  fi
}

apt_update_failed() {
  why=$(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | grep -Ei 'sign|key|release file|fetch|resolve|connect' | head -n 1)
  [ -n "$why" ] || why=$(grep -E '^(E|W): ' "$GPUNODE_IN/.update" | head -n 1)
  if grep -Eqi 'NO_PUBKEY|BADSIG|EXPKEYSIG|EXPSIG|REVKEYSIG|not signed|signatures? (were|was|could)|GPG error' "$GPUNODE_IN/.update"; then
    wrong_signature "$why"
  fi
  first=$(apt_first_error Err)
  [ -n "$first" ] || first=$(apt_first_error Ign)
  case $why in
    *"$first"*) unreadable_source "$why" ;;
    *) unreadable_source "$first; $why" ;;
  esac
}

# apt_first_error Err|Ign: why the first address could not be fetched; apt says it only there, and then judges the archive
apt_first_error() { awk -v kind="$1:" 'index($0, kind) == 1 { of = 1; next } of && /^  +[^ ]/ { sub(/^ +/, ""); print; exit } { of = 0 }' "$GPUNODE_IN/.update"; }

# the words for apt-get install: NAME=VERSION to have, NAME- to remove, but for what has gone first
apt_words() {
  requested install | while read -r name version _; do
    if [ "$version" = - ]; then echo "$name"; else echo "$name=$version"; fi
  done
  while read -r name; do
    grep -sqFx "$name" "$GPUNODE_IN/.first" || echo "$name-"
  done <"$GPUNODE_IN/.to_remove"
}

# While a package's dependencies cannot be met apt installs nothing else.  If such ones are to go, all that are to go
# go first (.first), and what comes then is simulated as if they were gone (.status).
apt_first() {
  : >"$GPUNODE_IN/.first"
  [ -s "$GPUNODE_IN/.to_remove" ] && ! apt_ check >/dev/null 2>&1 || return 0
  apt_ -s remove --allow-change-held-packages $(cat "$GPUNODE_IN/.to_remove") >"$GPUNODE_IN/.simulated" 2>&1 || return 1
  sed -n 's/^Remv \([^ ]*\) .*/\1/p' "$GPUNODE_IN/.simulated" >"$GPUNODE_IN/.first"
  awk -v RS= -v ORS='\n\n' 'FILENAME == ARGV[1] { split($0, names, "\n"); for (n in names) gone["Package: " names[n]]; next }
    { split($0, lines, "\n") } !(lines[1] in gone)' "$GPUNODE_IN/.first" "${DPKG_ADMINDIR:-/var/lib/dpkg}/status" >"$GPUNODE_IN/.status"
}

# apt_then WORD…: apt-get install of all, as once those that go first are gone
apt_then() {
  [ ! -s "$GPUNODE_IN/.first" ] || set -- "$@" -o Dir::State::status="$GPUNODE_IN/.status"
  apt_ "$@" install --allow-change-held-packages $(apt_words)
}

# apt-get's own list of what it would do takes half the time of -s, which plays the work of dpkg through as well
apt_simulate() {
  apt_first || return 1
  sed 's/^/remove /' "$GPUNODE_IN/.first"
  apt_then --print-uris -V -o quiet=1 >"$GPUNODE_IN/.simulated" 2>&1 || return 1
  awk '
    /^[^ ]/ { install = /^The following (NEW packages|packages) will be (installed|upgraded|DOWNGRADED):/; remove = / will be REMOVED:/ }
    /^ / && remove { sub(/[*]$/, "", $1); print "remove", $1 }
    /^ / && install { gsub(/[()]/, ""); print "install", $1, $NF }' "$GPUNODE_IN/.simulated"
}

apt_why_not() {
  grep -E '^E: |^ [^ ]+ : |Depends|Conflicts|no installation candidate' "$GPUNODE_IN/.simulated" | head -n 4 | tr -s ' \n' ' '
}

# KiB to fetch and KiB to unpack of what would be installed.  (Not from apt-get install --assume-no: where apt has
# nothing to ask, it does not stop there.)
apt_needs() {
  set -- $(sed -n 's/^install \([^ ]*\) \(.*\)/\1=\2/p' "$GPUNODE_IN/.would")
  [ $# -gt 0 ] || { echo 0 0 && return; }
  apt-cache show "$@" 2>/dev/null | awk '/^Size: / { fetch += $2 / 1024 } /^Installed-Size: / { unpack += $2 } END { printf "%d %d\n", fetch, unpack }'
}

apt_download() { logged transaction apt_then -y --download-only; }

apt_commit() {
  if [ -s "$GPUNODE_IN/.first" ]; then
    apt_ -y remove --allow-change-held-packages $(cat "$GPUNODE_IN/.first") >>"$log" 2>&1 || return
  fi
  logged transaction apt_ -y install --allow-change-held-packages $(apt_words)
}

apt_printed() { first_of '^(dpkg: error|e:) ' "$log"; }

apt_hold() { apt-mark hold "$@" >>"$log" 2>&1; }

apt_unhold() { echo "apt-mark unhold $1"; }
