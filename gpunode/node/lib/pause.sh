# shellcheck shell=sh
# shellcheck disable=SC2154 # log, of the script behind
# What is in the way is stopped or unloaded, and is back at the end.  Before it goes, an intent in the journal names it: where
# a run is killed in between, the next one brings it back.  Behind common.sh, before activate.sh, commit.sh, mig.sh and runfile.sh.

boot_id() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; }
is_module() { [ -d "/sys/module/$1" ]; }

# set_aside KIND NAME WAS IS: a unit (active) or module that goes for a while
set_aside() {
  begin_journal
  paused_id=${paused_id:-$(new_id "pause-$$")}
  record "$paused_id" pause intent ",\"kind\":\"$1\",\"name\":$(json_text "$2"),\"boot\":\"$(boot_id)\""
  prior "$@"
}

# pause NAME…: the services of these names that run are stopped
pause() {
  local unit
  for unit in "$@"; do
    is_active "$unit.service" || continue
    set_aside active "$unit.service" active inactive
    systemctl stop "$unit" >>"$log" 2>&1 </dev/null 9>&-
    paused="${paused:-} $unit.service"
  done
}

# resume: they are started again, and all that this run has set aside is back, as far as it can be
resume() {
  local unit
  for unit in ${paused:-}; do bring_active "$unit"; done
  [ -z "${paused_id:-}" ] || record "$paused_id" pause 'done'
  paused='' paused_id=''
}

# upon MODULE: it, and what is loaded upon it, in the order in which they can be loaded
upon() (
  echo "$1"
  for holder in "/sys/module/$1/holders/"*; do
    [ ! -e "$holder" ] || upon "${holder##*/}"
  done
)

down_to() { upon "$1" | sed '1!G; h; $!d'; } # in which they can be unloaded

# set_aside_driver: nvidia and what is loaded upon it, in $carried; one may go along with another
set_aside_driver() {
  local module
  carried=$(upon nvidia | awk '!seen[$0]++')
  checking || for module in $carried; do set_aside module "$module" loaded absent; done
}

# take_module MODULE: Canonical's driver has «alias nouveau off», by which modprobe removes another one
take_module() { attempt modprobe -r "$1" && is_module "$1" && attempt rmmod "$1"; ! is_module "$1"; }

# bring_back: what an interrupted run has set aside in this boot: a later one has started it itself.  What does not start is
# tried once more, by a step that may have installed what it lacks, and then left.
bring_back() {
  local id kind name missing thing
  unfinished pause | sort >"$GPUNODE_IN/.interrupted"
  while read -r id; do
    [ "$id" != "${paused_id:-}" ] || continue
    journal_lines | grep -F "{\"v\":1,\"id\":\"$id\"," >"$GPUNODE_IN/.paused"
    missing=''
    ! grep -qF "\"boot\":\"$(boot_id)\"" "$GPUNODE_IN/.paused" || for kind in module active; do
      case $kind in active) thing=unit ;; *) thing=$kind ;; esac
      # shellcheck disable=SC2013 # words without blanks
      for name in $(sed -n "s/.*\"kind\":\"$kind\",\"name\":\"\([A-Za-z0-9_][A-Za-z0-9_.@-]*\)\".*/\1/p" "$GPUNODE_IN/.paused"); do
        "is_$kind" "$name" && continue
        if checking || "bring_$kind" "$name"; then changed "$thing" "$name" "start or load $name, which an interrupted run has taken away"; else missing=1; fi
      done
    done
    checking && continue
    if [ -z "$missing" ] || grep -qF '"tried":true' "$GPUNODE_IN/.paused"; then
      record "$id" pause 'done'
    else
      record "$id" pause intent ',"tried":true'
    fi
  done <"$GPUNODE_IN/.interrupted"
}

bring_module() {
  prior module "$1" absent loaded
  { attempt modprobe "$1" && is_module "$1"; } || { say note "$1 was unloaded for a while, and does not load now${why:+: $why}" && return 1; }
}

bring_active() {
  prior active "$1" inactive active
  act_on start "$1" >>"$log" 2>&1 </dev/null 9>&- || { say note "$1 did not start again" && return 1; }
}
