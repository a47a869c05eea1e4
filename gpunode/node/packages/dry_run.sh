# shellcheck shell=sh
# shellcheck disable=SC2154  # $manager is packages.sh's
# What packages.sh says in check mode.

in_check_mode() {
  cp "$GPUNODE_IN/.differences" "$GPUNODE_IN/.announced"
  in_check_mode_missing=$(requested after | while read -r name; do grep -q "^$name " "$GPUNODE_IN/.before" || echo "$name"; done)
  if [ -n "$in_check_mode_missing" ]; then
    not_asked "$(printf '%s\n' "$in_check_mode_missing" | tr '\n' ' ')not there yet, and sets up a repository"
  elif ! manager_ configured; then
    not_asked "the node has no lists of these packages yet"
  elif { ! coming || list_offers; } && manager_ simulate >"$GPUNODE_IN/.would"; then
    refuse_surprises
    ! asking || { say resolved 1 && finish changed "the package manager can do it"; }
    list_dry_run >"$GPUNODE_IN/.announced"
  else
    in_check_mode_why=$(manager_ why_not)
    say unresolvable "$in_check_mode_why"
    finish failed "the package manager cannot do it: $in_check_mode_why" "see the plan's package list"
  fi
  # shellcheck disable=SC2046  # names
  [ "$manager" != pacman ] || pacman_kept $(cat "$GPUNODE_IN/.to_hold") | grep -Fxv -f "$GPUNODE_IN/.to_hold" | while read -r name; do
    ! grep -qFx "$name -" "$GPUNODE_IN/.holds" || echo "hold $name"
  done >>"$GPUNODE_IN/.announced"
  say_packages <"$GPUNODE_IN/.announced"
  say_built build <"$GPUNODE_IN/.undone"
  finish changed "${changes:-0} change(s) to packages would be made"
}

# unasked WHY: the question ends here, without an answer
unasked() {
  say unasked "$1"
  finish failed "the package manager was not asked"
}

not_asked() {
  say note "$1: the package manager was not asked"
  ! asking || say unasked "$1"
}

# what the plan rests on, apart from its transaction: how old the lists are, and what apt or pacman has of the request's names,
# as lines `offer NAME VERSION [NAME OP VERSION]…` with the bounds on the driver's own packages; not what a pin forbids
list_offers() {
  { ! coming && ! lists_are_fresh; } || say fresh 1
  [ "$manager" != pacman ] || pacman_offers
  have apt-cache || return 0
  apt_names policy >"$GPUNODE_IN/.policy"
  apt_names show | awk '
    function end(  count, i, group, line) {
      line = name " " version
      count = split(needs, group, /, */)
      for (i = 1; i <= count; i++)
        if (group[i] ~ /^nvidia-kernel-common-[^ ]+ \([<>=]+ [^ )]+\)$/) { gsub(/[()]/, "", group[i]); line = line " " group[i] }
      if (name != "" && version != "" && !((name ":", version) in forbidden)) printf "gpunode\toffer\t%s\n", line
      name = version = needs = ""
    }
    FILENAME == ARGV[1] { if (/^[^ ]/) of = $1; else if ($NF ~ /^-/) forbidden[of, $(NF - 1)]; next }
    /^Package: / { name = $2 } /^Version: / { version = $2 } /^Depends: / { needs = substr($0, 10) } /^$/ { end() } END { end() }' "$GPUNODE_IN/.policy" -
}

# apt_names VERB: what apt-cache says of the request's names
# shellcheck disable=SC2046 # names, an option or none
apt_names() { apt-cache $(! coming || echo "-c $GPUNODE_IN/.apt.conf") "$1" $(requested names) 2>/dev/null; }

# pacman's lists are those of the node's last upgrade, and nothing reads them again; apt without lists, or with sources that
# came after them, knows of the packages that are installed alone
lists_are_fresh() (
  if have apt-get; then
    local lists sources parts
    eval "$(apt-config shell lists Dir::State::lists/d sources Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
    apt_has_lists || return 1
    # apt-get update that finds no list changed writes into partial alone
    set -- "$lists"
    [ ! -d "$lists/partial" ] || set -- "$@" -newer "$lists/partial"
    [ -z "$(find "$sources" "$parts" -newer "$@" 2>/dev/null)" ] || return 1
    [ -n "$(find "$lists" -maxdepth 2 -mmin -1440)" ]
    return
  fi
  [ "$manager" != pacman ] || { pacman_configured; return; }
  find /var/cache/dnf /var/cache/libdnf5 /var/cache/zypp/raw -maxdepth 3 -mmin -1440 -path '*/repodata*' 2>/dev/null | grep -q .
)

# list_dry_run: the differences, and in place of their packages all that the package manager would change, in the same words;
# a kernel package comes next to the one that is there, under a name of its own (NAME-VERSION)
list_dry_run() {
  awk '
    FILENAME == ARGV[1] { now[$1] = $2; broken[$1] = $3 == "broken"; next }
    FILENAME == ARGV[2] && reported[$2]++ { next }
    FILENAME == ARGV[2] && $2 ~ /^kernel/ && $2 in now { next }
    FILENAME == ARGV[2] && $1 == "remove" { print; next }
    FILENAME == ARGV[2] && !($2 in now) { print; next }
    FILENAME == ARGV[2] { if (now[$2] != $3 && !broken[$2]) print "change", $2, "from", now[$2], "to", $3; else reported[$2] = 0; next }
    !(/^(install|change|remove) / && reported[$2])' "$GPUNODE_IN/.before" "$GPUNODE_IN/.would" "$GPUNODE_IN/.differences"
}
