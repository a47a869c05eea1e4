# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables of the program that this is a part of
# What follows the writes of a transaction: the daemon's own check of its configuration, notifying the unit, and whether it
# is healthy then.  Precedes commit.sh; what is asked for is in $backup.

# load FOLDER: what follows the writes of the transaction there, from its `after` (lines KEY VALUE)
load() {
  local key value
  backup=$1
  unit='' verb='' socket='' plugin='' plugin_was='' settle=3 limit=120 config='' dump='' handlers='' broken='' kind='' restored='' told_up='' health_error=''
  process='' reread=''
  while read -r key value; do
    case $key in
      unit | verb | socket | plugin | plugin_was | settle | limit | process | reread | config | dump | handlers | broken) eval "$key=\$value" ;;
    esac
  done <"$backup/after"
  client=$(engine_client)
  case ${client%%"$TAB"-*} in
    *ctr) kind=containerd ;;
    *docker) kind=docker ;;
    *crictl) kind=cri ;;
  esac
}

# ---------------------------------------------------------------- the daemon's own check

# judge FILE: the daemon's own check of a root config; what it prints is in .dump, and $verdict what it says against it.
# True where there is no such check.
judge() {
  verdict='' root=$1
  [ -e "$root" ] || root=/dev/null # what is built in
  : >"$GPUNODE_IN/.dump"
  [ -s "$backup/validate" ] || return 0
  set --
  while IFS= read -r word; do
    [ "$word" != @FILE@ ] || word=$root
    set -- "$@" "$word"
  done <"$backup/validate"
  have "$1" || return 0
  run_with_timeout 60 "$@" >"$GPUNODE_IN/.dump" 2>"$GPUNODE_IN/.verdict" 9>&- && return
  [ -n "$dump" ] || cat "$GPUNODE_IN/.dump" >>"$GPUNODE_IN/.verdict"
  verdict=$(grep -v 'level=\(info\|warning\)' "$GPUNODE_IN/.verdict" | tail -n 1 | cut -c 1-400)
  case $verdict in # the name of a file that is not in place yet says nothing to anybody
    *"$root"*) verdict=${verdict%%"$root"*}$config${verdict#*"$root"} ;;
  esac
  case $(cat "$GPUNODE_IN/.verdict") in # docker 20.10 has no --validate
    *'unknown flag'* | *'flag provided but not defined'*) return 0 ;;
  esac
  return 1
}

# judge_before: before the first write; where the daemon refuses what is there already, its check decides less afterwards
judge_before() {
  judge "$config" && return
  broken=yes
  echo 'broken yes' >>"$backup/after"
}

# validate FILE: the daemon accepts it, and sees the runtimes it was to get; else $verdict, and in $fix what to do.  A check
# that refused the file before as well decides nothing, unless a daemon would surely not start again.
validate() {
  local handler
  fix="look at the change (gpunode plan --diff, gpunode runtime diff) and report this"
  if ! judge "$1"; then
    [ -n "$broken" ] || { verdict="the new configuration is not valid: $verdict"; return 1; }
    if [ -n "$dump" ] && [ -n "$verb" ] && unit_active; then
      verdict="$unit runs, and does not start again with its configuration, changed or not: $verdict"
      fix="fix the configuration first"
      return 1
    fi
    say note "the daemon's own check refuses the configuration before and after the change alike: $verdict"
    return 0
  fi
  [ -n "$dump" ] && tr -d "\"'" <"$GPUNODE_IN/.dump" | grep '[.]runtimes[.]' >"$GPUNODE_IN/.runtimes" || return 0 # CRI is disabled, say
  for handler in $handlers; do
    grep -qF -e ".runtimes.$handler]" -e ".runtimes.$handler." "$GPUNODE_IN/.runtimes" && continue
    verdict="the daemon would not see the runtime $handler: no file that it reads says it"
    return 1
  done
}

# ---------------------------------------------------------------- what the unit says

unit_pid() { systemctl show -p MainPID "$unit" 2>/dev/null | sed 's/^MainPID=//'; }
unit_active() { [ "$(systemctl is-active "$unit" 2>/dev/null)" = active ]; } # is_active is true of one that reloads, too

# unit_running: a unit that nobody runs is not started by an edit of its files; one that failed is given its chance
unit_running() { unit_runs "$unit" || [ "$(systemctl is-active "$unit" 2>/dev/null)" = failed ]; }

# unit_errors: what the daemon, not systemd, has logged since it was notified; the lines that say most, in one
unit_errors() {
  [ -z "$process" ] || { pod_errors && return; }
  unit_log "$unit" --since "@$told_at" -n 200 -o cat >"$GPUNODE_IN/.words"
  cut -c 1-400 "$GPUNODE_IN/.words" | tail -n 20 >>"$log"
  # containerd only warns when its CRI plugin does not load; systemd's own lines say what it did
  grep -vE 'level=(info|debug)|^(Start|Stopp|Finished|Failed to start|Dependency failed|Scheduled restart|This usually indicates|[^ ]+[.]service: )' "$GPUNODE_IN/.words" |
    awk '/level=warning/ && !/failed to load plugin.*[.]cri/ { next }
      tolower($0) ~ /error|fatal|fail|invalid|cannot|unable|panic/ { if (!($0 in seen)) { seen[$0]; said[++n] = $0 } } { last = $0 }
      END { if (!n) said[++n] = last; for (i = n > 3 ? n - 2 : 1; i <= n; i++) print substr(said[i], 1, 300) }' |
    awk '{ printf "%s%s", (NR > 1 ? " | " : ""), $0 }'
}

# ---------------------------------------------------------------- what the engine says

# engine_client: the words of the engine's own client, split by tabs: of the health commands the one that asks for a version
engine_client() {
  while IFS= read -r line; do
    case $line in *"${TAB}version") have "${line%%"$TAB"*}" && printf '%s\n' "${line%"$TAB"version}" && return ;; esac
  done <"$backup/health"
}

# client WORD …: asks the engine something
client() { run_line "$client" "$@"; }

# run_line LINE WORD …: a command whose first words are a line, split at tabs
run_line() {
  local line
  line=$1
  shift
  set -f
  IFS=$TAB
  # shellcheck disable=SC2086  # split at tabs
  set -- $line "$@"
  unset IFS
  set +f
  run_with_timeout 20 "$@" 9>&-
}

# engine_answers: the first health command whose tool is there succeeds; without any, the socket has to exist.  With the
# old files any answer will do: what is new may be part of the health commands.
engine_answers() {
  [ -z "$socket" ] || [ -S "$socket" ] || return 1
  if [ -n "$restored" ]; then
    [ -z "$client" ] || client version >"$GPUNODE_IN/.answer" 2>&1
    return
  fi
  health_command_succeeds
}

# health_command_succeeds: the first health command whose tool is there succeeds
health_command_succeeds() {
  while IFS= read -r line; do
    have "${line%%"$TAB"*}" || continue
    run_line "$line" >"$GPUNODE_IN/.answer" 2>&1
    return
  done <"$backup/health"
}

# cri_plugin_ok: containerd's plugin list calls the wanted plugin ok; true where nobody can be asked, 2 when the plugin has failed
cri_plugin_ok() {
  [ -n "$plugin" ] && [ "$kind" = containerd ] || return 0
  client plugins ls >"$GPUNODE_IN/.plugins" 2>"$GPUNODE_IN/.answer" || return 1
  awk -v id="$plugin" '$2 == id && $NF == "ok" { found = 1 } ($2 == id || $1 == "io.containerd.cri.v1") && $NF == "error" { bad = 1 }
    END { exit bad ? 2 : !found }' "$GPUNODE_IN/.plugins"
}

# runtimes_known: the running engine has the runtimes it was to get; true where nobody can be asked.  $unknown names the other one
runtimes_known() {
  [ -n "$handlers" ] && [ -z "$restored" ] && [ "$plugin_was" != bad ] || return 0
  case $kind in
    docker) client info --format 'runtimes{{range $name, $runtime := .Runtimes}} {{$name}}{{end}}' ;;
    containerd) [ -z "$plugin" ] || ! have crictl || run_with_timeout 20 crictl --runtime-endpoint "unix://$socket" info 9>&- ;;
    cri) client info ;;
  esac >"$GPUNODE_IN/.knows" 2>"$GPUNODE_IN/.answer" || return 1
  tr -c 'A-Za-z0-9_.-' '\n' <"$GPUNODE_IN/.knows" >"$GPUNODE_IN/.words"
  grep -qxE 'runtimes|runtimeHandlers' "$GPUNODE_IN/.words" || return 0 # CRI-O of old does not say
  for unknown in $handlers; do
    grep -qxF "$unknown" "$GPUNODE_IN/.words" || return 1
  done
}

# containers: NAME PID of each one that runs and that a restart of the engine must not stop
containers() {
  # shellcheck disable=SC2046,SC2086  # ids, split at white space
  case $kind in
    containerd)
      for space in $(client namespaces ls -q); do
        client -n "$space" tasks ls | awk -v space="$space" '$3 == "RUNNING" { print space "/" $1, $2 }'
      done
      ;;
    docker)
      [ "$verb" = reload ] || [ "$(client info --format '{{.LiveRestoreEnabled}}')" = true ] || return 0
      ids=$(client ps -q --no-trunc) && [ -n "$ids" ] && client inspect -f '{{.Name}} {{.State.Pid}}' $ids
      ;;
    cri)
      ids=$(client ps -q) && [ -n "$ids" ] && client inspect -o go-template --template '{{.status.id}} {{.info.pid}}' $ids
      ;;
  esac 2>>"$log" | awk 'NF == 2'
}

# containers_kept: the containers that ran before run, as the engine has it; else $health_error.  One whose process has ended, while
# others go on, ended by itself: engines do not stop their containers.
containers_kept() {
  local lost ended name pid
  [ -s "$backup/running" ] || return 0
  for _ in 1 2 3 4 5 6; do
    containers >"$GPUNODE_IN/.running"
    awk 'FILENAME == ARGV[1] { now[$1]; next } !($1 in now)' "$GPUNODE_IN/.running" "$backup/running" >"$GPUNODE_IN/.missing"
    lost='' ended=''
    while read -r name pid; do
      if kill -0 "$pid" 2>/dev/null; then lost="$lost $name"; else ended="$ended $name"; fi
    done <"$GPUNODE_IN/.missing"
    [ -n "$lost" ] || break
    nap # it may still be finding them
  done
  health_error="$unit has lost running containers:$lost"
  [ -z "$lost" ] || return 1
  health_error="$unit took its containers along: none of them runs any more"
  [ "$(grep -c . "$GPUNODE_IN/.missing")" -lt "$(grep -c . "$backup/running")" ] || return 1
  health_error=''
  [ -z "$ended" ] || say note "ended while $unit was ${verb}ed:$ended"
}

# ---------------------------------------------------------------- notifying it

# is_healthy: the unit is active, answers, has its plugin and knows its runtimes; else $health_error
is_healthy() {
  : >"$GPUNODE_IN/.answer" # what the client said last
  health_error="$unit is not active"
  unit_active || return 1
  health_error="$unit does not answer"
  engine_answers || return 1
  health_error="$unit did not load its plugin $plugin"
  [ "$plugin_was" = bad ] || cri_plugin_ok || {
    [ $? != 2 ] || final=1
    return 1
  }
  runtimes_known || {
    health_error="$unit does not know the runtime $unknown"
    return 1
  }
  health_error=''
}

# becomes_healthy: within a minute, and stays up; the latter is left to a later run where the request says so
becomes_healthy() {
  begun=$(uptime_now) tries=0 final=''
  until is_healthy; do
    [ -z "$final" ] || return 1 # containerd has loaded its plugins when it answers: waiting changes nothing
    tries=$((tries + 1))
    unit_runs "$unit" && [ "$tries" -le 120 ] && [ $(($(uptime_now) - begun)) -le 60 ] || return 1
    nap
  done
  pid=$(unit_pid)
  leaves_it || stays_up
}

# leaves_it: whether a later run of this script proves that the unit stays up; never of files that were put back
leaves_it() { [ -n "$later" ] && [ -z "$restored" ]; }

# stays_up: with the same process until $settle seconds after it was notified
stays_up() {
  while :; do
    nap
    unit_active && [ "$(unit_pid)" = "$pid" ] || {
      health_error="$unit does not stay up"
      return 1
    }
    [ $(($(uptime_now) - ${told_up:-begun})) -lt "$settle" ] || return 0
  done
}

# read_units: systemd reads its units again where the edit was of some; running containers keep their GPUs
read_units() {
  [ -n "$reread" ] || return 0
  keep_gpus || {
    health_error="systemd would take their GPUs from running containers: $affected_containers"
    return 1
  }
  systemctl daemon-reload >>"$log" 2>&1 9>&-
}

# action_done: what was done, for a reader
action_done() { if [ "$verb" = await ]; then echo "$process started again"; else echo "$unit ${verb}ed"; fi; }

# notify_unit: restart or reload the unit and wait until it is healthy, with the containers it had; or await what it starts
notify_unit() {
  if [ "$verb" = await ]; then
    await
    return
  fi
  : >"$backup/running"
  ! unit_active || containers >"$backup/running"
  touch "$backup/notified"
  flush "$backup/notified"
  told_at=$(date +%s) told_up=$(uptime_now)
  read_units || return
  # a limit of its own, as dockerd's unit has none for its start
  act_on "$verb" "$unit" 180 >>"$log" 2>&1 9>&- || {
    health_error="$unit does not $verb"
    return 1
  }
  touch "$backup/took"
  becomes_healthy || {
    tail -n 5 "$GPUNODE_IN/.answer" >>"$log"
    return 1
  }
  leaves_it || containers_kept
}
