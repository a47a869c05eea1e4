# shellcheck shell=sh
# shellcheck disable=SC2154  # $log is common.sh's
# pacman, for packages.sh.  Tried with pacman 6.0.
#
# Arch has one version at a time, and installing with fresh lists on a system that is not upgraded breaks it («partial
# upgrades are unsupported»).  So the lists are never refreshed here: what they name and the mirror no longer has asks for
# an upgrade of the whole system first.

PACMAN_HOLD=/etc/pacman.d/gpunode-hold.conf

pacman_options() { use_proxy; }

pacman_() { pacman --noconfirm --noprogressbar --color never "$@" </dev/null 9>&-; }

pacman_installed() {
  { sed -n 's/^IgnorePkg *= */lock /p' "$PACMAN_HOLD" 2>/dev/null; pacman -Q 2>/dev/null | sed 's/^/package /'; } | awk '
    $1 == "lock" { for (i = 2; i <= NF; i++) hold[$i] = 1; next }
    { print $2, $3, (hold[$2] ? "hold" : "-") }'
}

# The lock file stays behind when pacman is killed: without a pacman it is nobody's.
pacman_holder() {
  [ -e /var/lib/pacman/db.lck ] || return 0
  for process in /proc/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in
      pacman | packagekitd | pamac-daemon) lock_of "${process#/proc/}" /var/lib/pacman/db.lck && return ;;
    esac
  done
}

pacman_recover() {
  [ ! -e /var/lib/pacman/db.lck ] || {
    say note "pacman was interrupted: removing its lock"
    rm -f /var/lib/pacman/db.lck
  }
}

pacman_configured() { ls /var/lib/pacman/sync/*.db >/dev/null 2>&1; }

pacman_refresh() {
  pacman_configured || fail "pacman has no package lists" "run pacman -Syu on the node, reboot into its newest kernel, then run again"
}

pacman_refresh_all() { :; }

# lines `offer NAME VERSION` of the names of the request
pacman_offers() {
  # shellcheck disable=SC2046 # names
  pacman_ -Si $(requested names) 2>/dev/null | awk '$1 == "Name" { name = $3 } $1 == "Version" { printf "gpunode\toffer\t%s %s\n", name, $3 }'
}

pacman_words() { requested install | cut -d ' ' -f 1; }

pacman_simulate() {
  : >"$GPUNODE_IN/.simulated"
  # shellcheck disable=SC2046  # words by design, their letters were checked by the builder of the request
  [ -z "$(pacman_words)" ] ||
    pacman_ -S --needed --print --print-format 'install %n %v' $(pacman_words) >"$GPUNODE_IN/.simulated" 2>&1 || return 1
  { sed 's/^/remove /' "$GPUNODE_IN/.to_remove"; grep '^install ' "$GPUNODE_IN/.simulated"; pacman_rivals; } | sort -u
}

# what is installed and conflicts with what would be, one side's «Conflicts With» against the other's name and «Provides»:
# pacman --print says nothing of it
pacman_rivals() {
  new=$(sed -n 's/^install \([^ ]*\) .*/\1/p' "$GPUNODE_IN/.simulated")
  [ -n "$new" ] || return 0
  # shellcheck disable=SC2086
  { pacman_ -Si $new 2>/dev/null | sed 's/^/new /'; pacman -Qi 2>/dev/null | sed 's/^/old /'; } | awk '
    $2 == "Name" { name = $4; side = $1; if (side == "new") coming[name] = 1; offers[side, name] = name }
    $2 == "Provides" || $2 == "Conflicts" {
      for (i = 4 + ($2 == "Conflicts"); i <= NF; i++) {
        word = $i; sub(/[<>=].*/, "", word)
        if ($2 == "Provides") given[side, word] = given[side, word] " " name; else if (word != "None") clash[side, name, word] = 1
      }
    }
    END {
      for (key in offers) { split(key, k, SUBSEP); given[k[1], k[2]] = given[k[1], k[2]] " " k[2] }
      for (key in clash) {
        split(key, k, SUBSEP)
        other = k[1] == "new" ? "old" : "new"
        count = split(given[other, k[3]], names, " ")
        for (i = 1; i <= count; i++) {
          rival = k[1] == "new" ? names[i] : k[2]
          mate = k[1] == "new" ? k[2] : names[i]
          if (!(rival in coming) && rival != mate) print "remove " rival
        }
      }
    }'
}

pacman_why_not() { grep -E '^(error|warning|::)' "$GPUNODE_IN/.simulated" | head -n 4 | tr -s ' \n' ' '; }

pacman_needs() {
  # shellcheck disable=SC2046
  pacman_ -Si $(sed -n 's/^install \([^ ]*\) .*/\1/p' "$GPUNODE_IN/.would") 2>/dev/null | awk '
    function kib(number, unit) { return number * (unit ~ /^G/ ? 1048576 : unit ~ /^M/ ? 1024 : unit ~ /^K/ ? 1 : 1 / 1024) }
    /^Download Size/ { fetch += kib($4, $5) } /^Installed Size/ { unpack += kib($4, $5) } END { printf "%d %d\n", fetch, unpack }'
}

# shellcheck disable=SC2046
pacman_download() { logged transaction pacman_ -Sw --needed $(pacman_words); }

pacman_commit() { logged transaction pacman_transact; }

# --ask 4 answers yes to the question whether what conflicts may go: pacman_rivals has named it
pacman_transact() {
  # shellcheck disable=SC2046
  [ -z "$(pacman_words)" ] || pacman_ -S --needed --ask 4 $(pacman_words) || return
  left=$(pacman -Qq 2>/dev/null | grep -Fx -f "$GPUNODE_IN/.to_remove" | tr '\n' ' ')
  # shellcheck disable=SC2086
  [ -z "$left" ] || pacman_ -R $left
}

pacman_printed() {
  grep '^error' "$GPUNODE_IN/.transaction" | head -n 1
  ! grep -q 'failed retrieving file' "$GPUNODE_IN/.transaction" || echo "(the lists are older than the mirror: run pacman -Syu)"
}

# Modules that are built for one kernel keep that kernel: without it, the next upgrade would leave the GPU behind.
pacman_kept() {
  for name in "$@"; do
    echo "$name"
    case $name in nvidia-open | nvidia) echo linux ;; nvidia-open-lts | nvidia-lts) echo linux-lts ;; esac
  done
}

pacman_hold() {
  { sed -n 's/^IgnorePkg *= *//p' "$PACMAN_HOLD" 2>/dev/null | tr ' ' '\n'; pacman_kept "$@"; } | sort -u | tr '\n' ' ' |
    sed 's/^/IgnorePkg = /; s/ $//' >"$GPUNODE_IN/.hold" && echo >>"$GPUNODE_IN/.hold"
  mkdir -p "${PACMAN_HOLD%/*}" && cp "$GPUNODE_IN/.hold" "$PACMAN_HOLD" && chmod 644 "$PACMAN_HOLD" || return 1
  grep -q "^Include *= *$PACMAN_HOLD" /etc/pacman.conf ||
    sed -i "0,/^\[options\]/s|^\[options\]|&\nInclude = $PACMAN_HOLD|" /etc/pacman.conf
}

pacman_unhold() { echo "take $1 out of IgnorePkg in /etc/pacman.conf"; }
