# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables that packages.sh sets or reads
# Who asked for packages, rpm's keys, and what else is undone with packages.  Stands before packages.sh.

# taking_back: whether the request speaks of marks or keys
taking_back() { [ -n "$(requested automatic)$(requested keys)" ]; }

# marks_now: fills .manual and .keys, where the request speaks of them
marks_now() {
  : >"$GPUNODE_IN/.now"
  ! taking_back || manager_ marks >"$GPUNODE_IN/.now"
  sed -n 's/^manual //p' "$GPUNODE_IN/.now" >"$GPUNODE_IN/.manual"
  sed -n 's/^key //p' "$GPUNODE_IN/.now" >"$GPUNODE_IN/.keys"
}

# more_marks: what the package manager says in addition to versions (core/undo/journal.py) and did not before, of packages of the transaction
more_marks() {
  [ -e "$GPUNODE_IN/.marks" ] || return 0
  : >>"$GPUNODE_IN/.after"
  awk 'FILENAME == ARGV[3] { marked[$0]; next } FILENAME != ARGV[4] { there[$1]; next } !($0 in marked) && ($1 != "manual" || $2 in there)' \
    "$GPUNODE_IN/.before" "$GPUNODE_IN/.after" "$GPUNODE_IN/.marks" "$GPUNODE_IN/.marks.after"
}

# fewer_marks: those of packages that a person asked for before
fewer_marks() {
  # a list without any is one of a manager that was not asked
  [ ! -e "$GPUNODE_IN/.marks" ] || ! grep -q '^manual ' "$GPUNODE_IN/.marks.after" ||
    awk 'FILENAME == ARGV[1] { now[$0]; next } $1 == "manual" && !($0 in now)' "$GPUNODE_IN/.marks.after" "$GPUNODE_IN/.marks"
}

# taken_back: what is asked in addition to packages when gpunode removes its changes
taken_back() {
  lifted=$(requested unhold | while read -r name; do grep -Fx "$name hold" "$GPUNODE_IN/.holds" | cut -d ' ' -f 1; done)
  # shellcheck disable=SC2086 # names
  [ -z "$lifted" ] || manager_ lift $lifted || fail "these could not be released: $lifted" "see the log"
  # shellcheck disable=SC2046
  left=$([ -z "$(requested purge)" ] || manager_ remnants $(requested purge))
  # shellcheck disable=SC2086
  [ -z "$left" ] || manager_ purge $left || say note "configuration was left behind: $why"
  [ -z "${kept:-}" ] || remove_folders "$kept/folders"
  marks_now # a package that a transaction named counts as asked for
  marked=$(requested automatic | grep -Fx -f "$GPUNODE_IN/.manual")
  # shellcheck disable=SC2086
  [ -z "$marked" ] || manager_ automatic $marked || say note "not marked as dependencies: $marked"
  known=$(requested keys | grep -Fx -f "$GPUNODE_IN/.keys")
  for key in $known; do attempt rpm -e "$key" || say note "the key $key stays: $why"; done
  [ -z "$left$marked$known" ] || back=1
  grep '^forget ' "$GPUNODE_IN/.differences" | say_packages
}
