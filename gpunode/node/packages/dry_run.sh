# shellcheck shell=sh
# shellcheck disable=SC2154  # $manager is packages.sh's
# What packages.sh says in check mode.

in_check_mode() {
  cp "$GPUNODE_IN/.differences" "$GPUNODE_IN/.announced"
  in_check_mode_missing=$(requested after | while read -r name; do grep -q "^$name " "$GPUNODE_IN/.before" || echo "$name"; done)
  if [ -n "$in_check_mode_missing" ]; then
    say note "$(printf '%s\n' "$in_check_mode_missing" | tr '\n' ' ')not there yet, and sets up a repository: the package manager was not asked"
  elif ! manager_ configured; then
    say note "the repository is not configured yet: the package manager was not asked"
  elif manager_ simulate >"$GPUNODE_IN/.would"; then
    refuse_surprises
    list_dry_run >"$GPUNODE_IN/.announced"
  else
    finish failed "the package manager cannot do it: $(manager_ why_not)" "see the plan's package list"
  fi
  # shellcheck disable=SC2046  # names
  [ "$manager" != pacman ] || pacman_kept $(cat "$GPUNODE_IN/.to_hold") | grep -Fxv -f "$GPUNODE_IN/.to_hold" | while read -r name; do
    ! grep -qFx "$name -" "$GPUNODE_IN/.holds" || echo "hold $name"
  done >>"$GPUNODE_IN/.announced"
  sed 's/^\([^ ]*\) \([^ ]*\) /build \1 \2 for kernel /' "$GPUNODE_IN/.undone" >>"$GPUNODE_IN/.announced"
  while read -r line; do say changed "$line"; done <"$GPUNODE_IN/.announced"
  finish changed "$(wc -l <"$GPUNODE_IN/.announced") change(s) to packages would be made"
}

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
