# shellcheck shell=sh
# shellcheck disable=SC2154  # $log and $PACMAN_HOLD are those of the script and the part before
# What taking packages back needs of each package manager.  Stands behind apt.sh, dnf.sh, zypper.sh and pacman.sh; for each:
#   marks        lines `manual NAME` (a package that a person asked for), `key NAME` (in rpm's keyring)
#   automatic NAME…  takes that mark off
#   lift NAME…   the packages are held no longer
#   remnants NAME…  those of the names that were removed and have left configuration
#   purge NAME…  takes that away
#   depends      lines `needs NAME WORD|WORD` and `gives NAME WORD` of what is installed
#   available NAME…  lines `NAME VERSION` of what could be installed
#   edited NAME…  lines `NAME PATH`: configuration that somebody changed, and that purge would take (rpm and pacman keep a
#                 copy next to it: .rpmsave, .pacsave)
#   texts NAME…  of each a line `@@NAME`, then its scripts and the names of its files
#   unchanged FILE  lines `NAME PATH`: those of the paths in FILE that are as the package NAME brings them
# remnants, purge, edited and unchanged there are of apt alone (manager_ in common.sh).

# ---------------------------------------------------------------- apt

# as apt-mark showmanual has it, which reads all lists for that: what is installed and not noted as automatic
apt_marks() {
  local states
  states=/var/lib/apt/extended_states
  [ -e "$states" ] || states=/dev/null
  apt_installed | awk -v native="$(dpkg --print-architecture)" '
    FILENAME != ARGV[1] { if (!($1 in automatic)) print "manual", $1; next }
    $1 == "Package:" { name = $2 }
    $1 == "Architecture:" { architecture = $2 }
    $1 == "Auto-Installed:" && $2 == 1 { automatic[name (architecture == native ? "" : ":" architecture)] }' "$states" -
}
apt_automatic() { apt-mark auto "$@" >>"$log" 2>&1; }

# what was removed in the meantime is held no longer
apt_lift() {
  local name
  for name in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null) in h*) apt-mark unhold "$name" >>"$log" 2>&1 || return 1 ;; esac
  done
}

# one question about all: a transaction has some sixty names
apt_remnants() {
  [ $# = 0 ] || dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Architecture}\n' "$@" 2>/dev/null | # of all architectures
    awk -v native="$(dpkg --print-architecture)" -v asked=" $* " '
      /^.c/ && index(asked, " " (name = $2 ($3 == native || $3 == "all" ? "" : ":" $3)) " ") { print name }'
}

# Canonical's script of nvidia-compute-utils takes nvidia-persistenced away with a branch's last file, though the user
# be that of another branch, which has come: the packages that name it are configured again
apt_purge() {
  local users user name
  users=$(cut -d : -f 1 /etc/passwd)
  attempt dpkg --purge "$@" || return
  for user in $users; do
    id -u "$user" >/dev/null 2>&1 || grep -lFw -e "$user" "${DPKG_ADMINDIR:-/var/lib/dpkg}/info/"*.postinst
  done | sed 's|.*/||; s|[.]postinst$||' | sort -u | while read -r name; do
    attempt dpkg-reconfigure --frontend=noninteractive "$name" </dev/null || return
  done
}

apt_texts() {
  local name
  for name in "$@"; do printf '%s\n' "/var/lib/dpkg/info/$name".* "/var/lib/dpkg/info/$name":*.*; done | grep -v '\*' |
    xargs awk 'FNR == 1 { name = FILENAME; sub(/.*\//, "", name); sub(/(:[^.]*)?\.[a-z0-9]*$/, "", name); print "@@" name } 1' 2>/dev/null
}

apt_depends() {
  dpkg-query -W -f '${Package}\t${Status}\t${Depends}, ${Pre-Depends}\t${Provides}\n' 2>/dev/null | awk -F '\t' '
    function bare(text) { gsub(/\([^)]*\)|:[a-z0-9]+| /, "", text); return text }
    $2 !~ / installed$/ { next }
    {
      print "gives", $1, $1
      n = split(bare($4), word, ",")
      for (i = 1; i <= n; i++) if (word[i] != "") print "gives", $1, word[i]
      n = split(bare($3), word, ",")
      for (i = 1; i <= n; i++) if (word[i] != "") print "needs", $1, word[i]
    }'
}

apt_available() {
  apt-cache madison "$@" 2>/dev/null | awk -F ' *[|] *' '$3 !~ /Sources$/ { sub(/^ */, "", $1); print $1, $2 }'
}

apt_edited() {
  local name
  for name in "$@"; do
    dpkg-query -W -f '${Conffiles}\n' "$name" 2>/dev/null | while read -r path sum obsolete; do
      [ -f "${path:-/}" ] || continue
      [ -z "$obsolete" ] || continue
      now=$(md5sum <"$path")
      [ "${now%% *}" = "$sum" ] || echo "$name $path"
    done
  done
}

# also those of another package than brought the file first: dpkg hands a file of configuration over
apt_unchanged() {
  local name path sum now
  # shellcheck disable=SC2016 # dpkg-query's
  dpkg-query -W -f '${Package}\n${Conffiles}\n' 2>/dev/null |
    awk 'FILENAME == ARGV[1] { asked[$0]; next } !/^ / { name = $1; next } $1 in asked { print name, $1, $2 }' "$1" - |
    while read -r name path sum; do
      [ -f "$path" ] || continue
      now=$(md5sum <"$path")
      [ "${now%% *}" != "$sum" ] || echo "$name $path"
    done
}

# ---------------------------------------------------------------- rpm: dnf and zypper

rpm_keys() { rpm -q gpg-pubkey --qf 'key gpg-pubkey-%{VERSION}-%{RELEASE}\n' 2>/dev/null | grep '^key '; }

rpm_texts() { rpm -q --qf '@@%{NAME}\n%{PREIN}\n%{POSTIN}\n%{POSTTRANS}\n[%{TRIGGERSCRIPTS}\n][%{FILENAMES}\n]' "$@" 2>/dev/null; }

rpm_depends() {
  rpm -qa --qf '[needs %{=NAME} %{REQUIRENAME}\n][gives %{=NAME} %{PROVIDENAME}\n]' 2>/dev/null | grep -v ' rpmlib(\| config('
}

# dnf takes a second or two to say who asked for what, so it is asked only where that is undone
dnf_marks() {
  rpm_keys
  ! taking_back || dnf_reasons
}
dnf_reasons() {
  dnf_options
  dnf_unlocked -q -C repoquery --userinstalled --qf '%{name}\n' 2>/dev/null | sed -n 's/^./manual &/p' | sort -u
}
dnf_automatic() { dnf_ -q -y mark "$(if is_dnf5; then echo dependency; else echo remove; fi)" "$@" >>"$log" 2>&1; }
dnf_lift() { printf '%s\n' "$@" | dnf_unlock; }
dnf_texts() { rpm_texts "$@"; }
dnf_depends() { rpm_depends; }
# A branch of the driver is a stream of a module on EL: what is in one that is not enabled is there as well.
dnf_available() {
  dnf_options
  # shellcheck disable=SC2046  # options or one: dnf 5 shows all versions, and knows neither
  dnf_unlocked -q -C repoquery $(if is_dnf5; then echo '--setopt=*.module_hotfixes=1'; else echo --showduplicates --disable-modular-filtering; fi) --qf '%{name} %{version}-%{release}\n' "$@" 2>/dev/null | grep . # dnf 5 adds no line end
}

zypper_marks() {
  local automatic
  rpm_keys
  automatic=/var/lib/zypp/AutoInstalled
  [ -e "$automatic" ] || automatic=/dev/null # all count as asked for
  rpm -qa --qf '%{NAME}\n' | grep -Fxv -f "$automatic" | sed 's/^/manual /'
}
zypper_automatic() {
  printf '%s\n' "$@" >>/var/lib/zypp/AutoInstalled
}
zypper_lift() { for name in "$@"; do zypper_lock remove "$name" || return 1; done; }
zypper_texts() { rpm_texts "$@"; }
zypper_depends() { rpm_depends; }
zypper_available() {
  zypper_ --no-refresh --xmlout search --details --match-exact --type package "$@" 2>/dev/null |
    sed -n 's/.*<solvable .*name="\([^"]*\)".*edition="\([^"]*\)".*/\1 \2/p'
}

# ---------------------------------------------------------------- pacman

pacman_marks() { pacman -Qeq 2>/dev/null | sed 's/^/manual /'; }
pacman_automatic() { pacman_ -D --asdeps "$@" >>"$log" 2>&1; }
pacman_texts() {
  local name
  for name in "$@"; do echo "@@$name" && cat "/var/lib/pacman/local/$name"-[0-9]*/install "/var/lib/pacman/local/$name"-[0-9]*/files; done 2>/dev/null
}

# With the last name goes the list itself, and the line that has it read.
pacman_lift() {
  local left name
  left=$(sed -n 's/^IgnorePkg *= *//p' "$PACMAN_HOLD" 2>/dev/null | tr ' ' '\n' | grep .)
  for name in "$@"; do left=$(printf '%s\n' "$left" | grep -Fxv "$name"); done
  if [ -n "$left" ]; then
    printf 'IgnorePkg = %s\n' "$(printf '%s' "$left" | tr '\n' ' ')" >"$PACMAN_HOLD"
    return
  fi
  sed -i "\|^Include *= *$PACMAN_HOLD\$|d" /etc/pacman.conf && rm -f "$PACMAN_HOLD"
}

pacman_depends() {
  pacman -Qi 2>/dev/null | awk '
    function each(op, from, word) { for (; from <= NF; from++) if ($from != "None") { word = $from; sub(/[<>=].*/, "", word); print op, name, word } }
    $1 == "Name" { name = $3; print "gives", name, name }
    $1 == "Provides" { each("gives", 3) }
    $1 == "Depends" { each("needs", 4) }'
}

pacman_available() {
  local name file version
  pacman -Si "$@" 2>/dev/null | awk '$1 == "Name" { name = $3 } $1 == "Version" { print name, $3 }'
  for name in "$@"; do
    for file in /var/cache/pacman/pkg/"$name"-*.pkg.tar.*; do
      case $file in *.sig | *'*'*) continue ;; esac
      version=${file##*/"$name"-} version=${version%.pkg.tar.*} version=${version%-*}
      case $version in *-*-*) ;; *) echo "$name $version" ;; esac
    done
  done
}
