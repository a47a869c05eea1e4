# shellcheck shell=sh
# Which files others bring in: of the probe, and of the journal.

# containerd_imports FILE DEPTH: the files its `imports` name, and theirs; relative ones start at the file's folder
containerd_imports() (
  [ -r "$1" ] && [ "$2" -gt 0 ] || return 0
  # shellcheck disable=SC2013 # words, not lines: one line may name several
  for glob in $(sed -n -e '/^ *imports *=/,/\]/{' -e 's/#.*//' -e 's/^ *imports *= *//' -e "s/[][\"',]/ /gp" -e '}' "$1"); do
    case $glob in /*) ;; *) glob=${1%/*}/$glob ;; esac
    for import in $glob; do
      [ -f "$import" ] || continue
      echo "$import"
      containerd_imports "$import" $(($2 - 1))
    done
  done
)
