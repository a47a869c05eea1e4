# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034  # $log and $why are common.sh's, $refreshed_all is for packages.sh
# dnf 4, dnf 5 and yum, for packages.sh.  Tried with dnf 4.14 and 5.4.

dnf_command() { if have dnf; then echo dnf; else echo yum; fi; }
is_dnf5() { case $(readlink -f "$(command -v dnf)") in */dnf5) ;; *) return 1 ;; esac }

dnf_options() {
  conf=/etc/dnf/dnf.conf
  [ -e "$conf" ] || conf=/etc/yum.conf
  # A file and not --setopt: arguments are public.  The list of packages is the plan's: nothing weak comes along,
  # and what is removed takes nothing along that nobody needs any more.  Of two lines for one option the last one counts.
  awk '/^(install_weak_deps|best|obsoletes|color|clean_requirements_on_remove) *=/ { next } { print }
    !done && /^\[main\]/ { print "install_weak_deps=False\nbest=True\nobsoletes=True\ncolor=never\nclean_requirements_on_remove=False"; done = 1 }' \
    "$conf" >"$GPUNODE_IN/.dnf.conf" 2>/dev/null
  [ -s "$GPUNODE_IN/.dnf.conf" ] || printf '[main]\ninstall_weak_deps=False\nbest=True\ngpgcheck=1\n' >"$GPUNODE_IN/.dnf.conf"
  ! coming || dnf_lay_out
  ! alone || sed -i "/^reposdir *=/d; s|^\[main\]|&\nreposdir=$GPUNODE_IN/.sources|" "$GPUNODE_IN/.dnf.conf"
  use_proxy
}

# Repositories that come are read into a cache of the question's own, next to the node's; nothing is written elsewhere.
dnf_lay_out() {
  local cache
  lay_out /etc/yum.repos.d
  mkdir -p "$GPUNODE_IN/.cache"
  for cache in /var/cache/libdnf5/* /var/cache/dnf/*; do
    case $cache in *.json | *.pid | *.lock | *.db) ;; *) cp -as "$cache" "$GPUNODE_IN/.cache/" 2>/dev/null ;; esac
  done
  sed -i "s|^\[main\]|&\nreposdir=$GPUNODE_IN/.laid\ncachedir=$GPUNODE_IN/.cache\nsystem_cachedir=$GPUNODE_IN/.cache\nretries=1\ntimeout=10|" "$GPUNODE_IN/.dnf.conf"
}

# what it writes is for every user of the node to read
# shellcheck disable=SC2046 # options or none
dnf_() { (umask 022 && exec "$(dnf_command)" -c "$GPUNODE_IN/.dnf.conf" $(! asking || dnf_asking) "$@" </dev/null 9>&-); }

# options of a question: no network but where it is meant to, and no list of names for completion in the node's cache
dnf_asking() {
  [ -n "${fetching:-}" ] || echo -C
  ! coming || is_dnf5 || echo --disableplugin=generate_completion_cache
}

# Locks are ours or the node's; what the transaction may change is checked before (refuse_surprises).
dnf_unlocked() {
  if is_dnf5; then dnf_ --setopt='disable_excludes=*' "$@"; else dnf_ --disableplugin=versionlock "$@"; fi
}

# packages of which several versions are installed side by side also stand as NAME-VERSION-RELEASE.ARCH
dnf_installed() {
  {
    dnf_locks | sed 's/^/lock /'
    rpm -qa --qf 'package %{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n' 2>/dev/null
  } | awk -v native="$(uname -m)" '
    $1 == "lock" { hold[$2 " " $3] = 1; next } # a lock on another version holds nothing
    $2 == "gpg-pubkey" { next }
    { name = $2 ($4 == native || $4 == "noarch" ? "" : "." $4); print name, $3, (hold[$2 " " $3] ? "hold" : "-") }
    $2 ~ /^kernel/ { print $2 "-" $3 "." $4, $3, "-" }'
}

# lines `NAME VERSION-RELEASE` of the version lock, where a line is NAME-[EPOCH:]VERSION-RELEASE.ARCH or, of yum, EPOCH:NAME-…;
# dnf 5 has tables of TOML with name, key, comparator and value
dnf_locks() {
  [ ! -e /etc/dnf/versionlock.toml ] || awk -F '"' '
    /^\[\[packages\]\]/ { name = "" } /^name *=/ { name = $2 } /^key *=/ { key = $2 } /^comparator *=/ { compares = $2 }
    /^value *=/ && key == "evr" && compares == "=" { sub(/^[0-9]*:/, "", $2); print name, $2 }' /etc/dnf/versionlock.toml
  for list in /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list; do
    [ ! -e "$list" ] || sed -n '/^[^#!]/ { s/^[0-9]*://; s/\.[^.-]*$//; s/-\([0-9]*:\)\{0,1\}\([^-]*-[^-]*\)$/ \2/p }' "$list"
  done
}

dnf_holder() {
  pid_holder /var/run/yum.pid /var/lib/dnf/rpmdb_lock.pid /var/cache/dnf/metadata_lock.pid /var/cache/dnf/download_lock.pid | grep . ||
    lock_holder /var/lib/rpm/.rpm.lock /usr/lib/sysimage/rpm/.rpm.lock /run/dnf/rpmtransaction.lock
}

# A transaction that was killed leaves two versions of a package in the database, of which the newer one is whole.
dnf_recover() {
  rpm_recover
  [ -n "$(unfinished packages)" ] || return 0
  twice=$(rpm -qa --qf '%{NAME}.%{ARCH}\n' | grep -v -e '^kernel' -e '^gpg-pubkey' | sort | uniq -d)
  [ -n "$twice" ] || return 0
  say note "rpm was interrupted: removing duplicates of $(printf '%s' "$twice" | tr '\n' ' ')"
  dnf_unlocked -y remove --duplicates >>"$log" 2>&1 ||
    fail "packages are installed in two versions: $(printf '%s' "$twice" | tr '\n' ' ')" "run dnf remove --duplicates on the node"
}

dnf_configured() {
  [ -z "$(missing_source)" ] || return 1
  # of a stream that is not enabled, dnf 5 says nothing
  ! is_dnf5 || [ -z "$(dnf_stream_words)" ] || return 1
  ! coming || { fetching=1 dnf_refresh_all && dnf_fetch; }
  for repository in $(repositories); do
    dnf_ -q -C --disablerepo='*' --enablerepo="$repository" repoquery --qf '%{name}' >"$GPUNODE_IN/.known" 2>/dev/null && [ -s "$GPUNODE_IN/.known" ] || return 1
  done
}

dnf_refresh() {
  sources_there
  dnf_fetch
  dnf_streams
}

dnf_fetch() {
  local fetching=1
  for repository in $(repositories); do
    # shellcheck disable=SC2046  # an option or none: yum always fetches again
    logged update dnf_ -y $(! have dnf || echo --refresh) --disablerepo='*' --enablerepo="$repository" \
      --setopt="$repository.skip_if_unavailable=0" makecache || dnf_refresh_failed
  done
}

dnf_refresh_all() { refreshed_all=1; attempt dnf_ -y makecache || say note "dnf makecache: $why"; }

dnf_refresh_failed() {
  sed -i '/^Importing GPG key/,/^ From /d' "$GPUNODE_IN/.update" # of a key that was good
  why=$(first_of 'error|fail|cannot|signature|key' "$GPUNODE_IN/.update")
  if grep -Eqi 'gpg|signature|public key' "$GPUNODE_IN/.update"; then wrong_signature "$why"; fi
  unreadable_source "$why"
}

# the stream of a module that is enabled, by dnf's own record
dnf_stream() { sed -n 's/^stream *= *//p' "/etc/dnf/modules.d/$1.module" 2>/dev/null; }

# the streams that were enabled before
dnf_streams_back() {
  requested streams | while read -r module _; do
    [ -e "$GPUNODE_IN/.was.$module" ] || continue
    if [ -s "$GPUNODE_IN/.was.$module" ]; then
      cp -p "$GPUNODE_IN/.was.$module" "/etc/dnf/modules.d/$module.module"
    else
      rm -f "/etc/dnf/modules.d/$module.module"
    fi
  done
}

# A stream is chosen before packages are looked for; the former one comes back when they cannot be had.
dnf_streams() {
  requested streams | while read -r module stream; do
    now=$(dnf_stream "$module")
    [ "$now" != "$stream" ] || continue
    cp -p "/etc/dnf/modules.d/$module.module" "$GPUNODE_IN/.was.$module" 2>/dev/null || : >"$GPUNODE_IN/.was.$module"
    if [ -s "$GPUNODE_IN/.was.$module" ]; then prior stream "$module" "$now" "$stream"; else prior stream "$module" absent "$stream"; fi
    [ -z "$now" ] || dnf_ -y module reset "$module" >>"$log" 2>&1
    [ "$stream" != - ] || { rm -f "/etc/dnf/modules.d/$module.module" && continue; } # there was none before gpunode
    dnf_ -y module enable "$module:$stream" >>"$log" 2>&1 || {
      fail "the repository has no stream $module:$stream: $(grep -Ei 'error|missing|unable' "$log" | tail -n 1)" \
        "dnf module list $module on the node shows those there are"
    }
  done || exit 1
}

# what a shell of dnf 4 is asked about streams: in check mode, which enables none, those that would be
dnf_stream_words() {
  checking || return 0
  requested streams | while read -r module stream; do
    [ "$(dnf_stream "$module")" != "${stream#-}" ] || continue
    if [ "$stream" = - ]; then echo "module reset $module"; else echo "module enable $module:$stream"; fi
  done
}

dnf_words() {
  requested install | while read -r name version _; do
    if [ "$version" = - ]; then echo "install $name"; else echo "install $name-$version"; fi
  done
  sed 's/^/remove /' "$GPUNODE_IN/.to_remove"
}

# the one way to install and remove in one transaction: a shell, or since dnf 5 «do»
dnf_transact() {
  if is_dnf5; then
    # shellcheck disable=SC2046  # words by design, their letters were checked by the builder of the request
    dnf_unlocked 'do' "$@" $(dnf_words | sed 's/^/--action=/')
  else
    { dnf_stream_words; dnf_words; echo run; } >"$GPUNODE_IN/.shell"
    # shellcheck disable=SC2046  # an option or none
    dnf_unlocked $([ -z "$(dnf_stream_words)" ] || echo --setopt=module_stream_switch=1) "$@" shell "$GPUNODE_IN/.shell"
  fi
}

dnf_simulate() {
  dnf_transact --assumeno >"$GPUNODE_IN/.simulated" 2>&1
  ! grep -v 'Operation aborted' "$GPUNODE_IN/.simulated" | grep -Eq '^(Error|Failed to|Problem)| Problem:' || return 1
  # a table: a section's name, then rows of package, architecture, version, repository and size; dnf 4 folds long rows,
  # dnf 5 has rows `replacing PACKAGE …` between
  awk '
    /^(Installing|Upgrading|Downgrading|Reinstalling)/ { op = "install"; next }
    /^Removing/ { op = "remove"; next }
    /^(Transaction Summary|Skipping|(Enabling|Switching|Resetting) module)/ { op = "" }
    op != "" && $1 == "replacing" { print "remove", $2; next }
    op != "" && /^ / {
      if (NF == 1) { kept = $1; next }
      if (kept != "") { print op, kept, plain($2); kept = "" } else if (NF >= 4) print op, $1, plain($3)
    }
    function plain(version) { sub(/^[0-9]+:/, "", version); return version }' "$GPUNODE_IN/.simulated" | dnf_only_what_is_there
}

# removals that make room for another version of the same package are no removals
dnf_only_what_is_there() {
  awk '$1 == "install" { new[$2] = 1 } { line[NR] = $0; op[NR] = $1; name[NR] = $2 } END { for (i = 1; i <= NR; i++) if (op[i] != "remove") print line[i]; else if (!(name[i] in new)) print "remove", name[i] }'
}

dnf_why_not() { grep -E 'Problem|nothing provides|conflicts|requires|No match|Unable to find|cannot install|^Error: U|matches only' "$GPUNODE_IN/.simulated" | grep -v 'Operation aborted' | head -n 4 | tr -s ' \n' ' '; }

dnf_needs() {
  awk '
    function kib(number, unit) { return number * (unit ~ /^G/ ? 1048576 : unit ~ /^M/ ? 1024 : unit ~ /^[kK]/ ? 1 : 1 / 1024) }
    /^Total download size:/ { fetch = kib($4, $5) } /^Total size:/ { fetch = kib($3, $4) } /^Installed size:/ { unpack = kib($3, $4) }
    /Need to download / { sub(/.*Need to download /, ""); fetch = kib($1, $2) } # dnf 5
    /\(install / { sub(/.*\(install /, ""); unpack = kib($1, $2) }
    END { printf "%d %d\n", fetch, unpack }' "$GPUNODE_IN/.simulated"
}

dnf_download() { dnf_run --downloadonly; }

# dnf_run OPTION…: the transaction, its output in .transaction
dnf_run() {
  logged transaction dnf_transact -y "$@"
  result=$?
  ! grep -Eq '^(Error|Failed)' "$GPUNODE_IN/.transaction" || result=1 # dnf shell exits 0 whatever became of it
  return $result
}

dnf_commit() {
  dnf_run
  result=$?
  [ "$result" != 0 ] || dnf_unlock <"$GPUNODE_IN/.to_remove"
  return $result
}

dnf_printed() { first_of '^(error|fail)|problem' "$GPUNODE_IN/.transaction"; }

dnf_hold() {
  printf '%s\n' "$@" | dnf_unlock
  dnf_ -q versionlock add "$@" >>"$log" 2>&1
}

# takes the names on standard input off the version lock
dnf_unlock() {
  while read -r name; do
    dnf_locks | grep -q "^$name " && dnf_ -q versionlock delete "$name" >>"$log" 2>&1
  done
  return 0
}

dnf_unhold() { echo "dnf versionlock delete $1"; }
