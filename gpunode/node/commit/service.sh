# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables of the program that this is a part of
# What follows the writes of a transaction: the daemon's own check of its configuration, what is in force before and
# after, telling the unit, and whether it is healthy then.  Stands before commit.sh; what it is asked is in $backup.

# load ID: what follows the writes of a transaction, from its `after` (lines KEY VALUE)
# sets: backup unit verb socket plugin plugin_was settle limit config dump handlers broken kind restored told_up illness process reread client
load() {
  backup=$GPUNODE_STATE/backup/$1
  unit='' verb='' socket='' plugin='' plugin_was='' settle=3 limit=120 config='' dump='' handlers='' broken='' kind='' restored='' told_up='' illness=''
  process='' reread=''
  while read -r _load_key _load_value; do
    case $_load_key in
      unit) unit=$_load_value ;;
      verb) verb=$_load_value ;;
      socket) socket=$_load_value ;;
      plugin) plugin=$_load_value ;;
      plugin_was) plugin_was=$_load_value ;;
      settle) settle=$_load_value ;;
      limit) limit=$_load_value ;;
      process) process=$_load_value ;;
      reread) reread=$_load_value ;;
      config) config=$_load_value ;;
      dump) dump=$_load_value ;;
      handlers) handlers=$_load_value ;;
      broken) broken=$_load_value ;;
    esac
  done <"$backup/after"
  client=$(its_client)
  case ${client%%"$TAB"-*} in
    *ctr) kind=containerd ;;
    *docker) kind=docker ;;
    *crictl) kind=cri ;;
  esac
}

# patience SECONDS COMMAND …: a limit where `timeout` is there (dockerd's unit has none for its start)
patience() {
  if have timeout; then timeout "$@"; else shift && "$@"; fi
}

# ---------------------------------------------------------------- the daemon's own check

# judge FILE: the daemon's own check of a root config; what it prints is in .dump, and $verdict what it says against it.
# True where there is no such check.
# sets: verdict root
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
  patience 60 "$@" >"$GPUNODE_IN/.dump" 2>"$GPUNODE_IN/.verdict" 9>&- && return
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

# settings FILE: the TOML of .dump as lines PATH<TAB>VALUE, path without quotes; elements of imports
# one by one (their order is no setting), and without FILE itself, which containerd 1.x counts among them
settings() {
  ROOT_CONFIG=$1 awk '
    function bare(text) { gsub(/["\047]/, "", text); return text }
    { sub(/^[ \t]+/, ""); sub(/[ \t]+$/, "") }
    /^(#|$)/ { next }
    /^\[.*\]$/ { table = $0; sub(/^\[\[?/, "", table); sub(/\]\]?$/, "", table); table = bare(table); key = table
      print key "\t[table]"; next }
    match($0, /^("[^"]*"|\047[^\047]*\047|[A-Za-z0-9_.-]+)([.]("[^"]*"|\047[^\047]*\047|[A-Za-z0-9_-]+))*[ \t]*=/) {
      key = substr($0, 1, RLENGTH - 1); sub(/[ \t]+$/, "", key); key = (table == "" ? "" : table ".") bare(key)
      value = substr($0, RLENGTH + 1)
      if (key != "imports") { print key "\t" value; next }
      gsub(/^[ \t]*\[|\][ \t]*$/, "", value); n = split(bare(value), files, /, */)
      for (i = 1; i <= n; i++) if (files[i] != ENVIRON["ROOT_CONFIG"]) print key "\t" files[i]
      next }
    { print key "\t" $0 } # a further line of a list' "$GPUNODE_IN/.dump"
}

# remember_effective: what is in force before the first write; nothing where the daemon cannot say, or refuses it
# sets: broken verdict root
remember_effective() {
  judge "$config" || {
    broken=yes
    echo 'broken yes' >>"$backup/after"
    return
  }
  [ -z "$dump" ] || [ ! -s "$GPUNODE_IN/.dump" ] || settings "$root" >"$backup/effective"
}

# validate FILE: the daemon takes it, and of what is in force differs only what was meant; else $verdict, and in $mend what
# mends it.  A check that refused the file before as well decides nothing, unless a daemon would surely not start again.
# sets: verdict mend root
validate() {
  mend="look at the change (gpunode plan --diff, gpunode runtime diff) and report this"
  if ! judge "$1"; then
    [ -n "$broken" ] || { verdict="the new configuration is not valid: $verdict"; return 1; }
    if [ -n "$dump" ] && [ -n "$verb" ] && unit_active; then
      verdict="$unit runs, and does not start again with its configuration, changed or not: $verdict"
      mend="mend the configuration first"
      return 1
    fi
    say note "the daemon's own check refuses the configuration before and after the change alike: $verdict"
    return 0
  fi
  [ -s "$backup/effective" ] && [ -s "$GPUNODE_IN/.dump" ] || return 0
  settings "$root" >"$GPUNODE_IN/.effective"
  unmeant || return 1
  grep -q '[.]runtimes[.]' "$GPUNODE_IN/.effective" || return 0 # no list of them: CRI is disabled, say
  for _validate_handler in $handlers; do
    awk -v want=".runtimes.$_validate_handler" '{ at = index($1, want); rest = substr($1, at + length(want), 1) }
      at && (rest == "" || rest == ".") { found = 1 } END { exit !found }' "$GPUNODE_IN/.effective" && continue
    verdict="the daemon would not see the runtime $_validate_handler: no file that it reads says it"
    return 1
  done
}

# unmeant: false when a setting differs that was not to; $verdict names the keys and no value: some are passwords
# sets: verdict
unmeant() {
  [ -s "$backup/meant" ] || return 0
  verdict=$(awk -F "$TAB" '
    FILENAME == ARGV[1] { meant[$0]; next }
    FILENAME == ARGV[2] { before[$0]; next }
    { after[$0] }
    function check(line, path, m) {
      path = line; sub(/\t.*/, "", path)
      for (m in meant) if (path == m || index(path, m ".") == 1) return
      if (!(path in said)) { said[path]; list[++n] = path }
    }
    END {
      for (line in before) if (!(line in after)) check(line)
      for (line in after) if (!(line in before)) check(line)
      for (i = 1; i <= n && i <= 5; i++) text = text (i > 1 ? ", " : "") list[i]
      print text (n > 5 ? " and " n - 5 " more" : "")
    }' "$backup/meant" "$backup/effective" "$GPUNODE_IN/.effective")
  [ -n "$verdict" ] || return 0
  verdict="the daemon would also take up another $verdict, which was not meant"
  return 1
}

# ---------------------------------------------------------------- what the unit says

unit_pid() { systemctl show -p MainPID "$unit" 2>/dev/null | sed 's/^MainPID=//'; }
unit_active() { [ "$(systemctl is-active "$unit" 2>/dev/null)" = active ]; }

# unit_running: a unit that nobody runs is not started by an edit of its files; one that failed is given its chance
unit_running() {
  case $(systemctl is-active "$unit" 2>/dev/null) in
    active | activating | reloading | failed) ;;
    *) return 1 ;;
  esac
}

# unit_words: what the daemon, not systemd, has logged since it was told; the lines that say most, in one
unit_words() {
  [ -z "$process" ] || { pod_words && return; }
  have journalctl || return 0
  journalctl -u "$unit" --since "@$told_at" -n 200 --no-pager -o cat >"$GPUNODE_IN/.words" 2>/dev/null
  cut -c 1-400 "$GPUNODE_IN/.words" | tail -n 20 >>"$log"
  # containerd only warns when its CRI plugin does not load; systemd's own lines say what it did
  grep -vE 'level=(info|debug)|^(Start|Stopp|Finished|Failed to start|Dependency failed|Scheduled restart|This usually indicates|[^ ]+[.]service: )' "$GPUNODE_IN/.words" |
    awk '/level=warning/ && !/failed to load plugin.*[.]cri/ { next }
      tolower($0) ~ /error|fatal|fail|invalid|cannot|unable|panic/ { if (!($0 in seen)) { seen[$0]; said[++n] = $0 } } { last = $0 }
      END { if (!n) said[++n] = last; for (i = n > 3 ? n - 2 : 1; i <= n; i++) print substr(said[i], 1, 300) }' |
    awk '{ printf "%s%s", (NR > 1 ? " | " : ""), $0 }'
}

# ---------------------------------------------------------------- what the engine says

# its_client: the words of the engine's own client, split by tabs: of the health commands the one that asks for a version
its_client() {
  while IFS= read -r line; do
    case $line in *"${TAB}version") have "${line%%"$TAB"*}" && printf '%s\n' "${line%"$TAB"version}" && return ;; esac
  done <"$backup/health"
}

# client WORD …: asks the engine something
client() { words "$client" "$@"; }

# words LINE WORD …: a command whose first words are a line, split at tabs
words() {
  _words_line=$1
  shift
  set -f
  IFS=$TAB
  # shellcheck disable=SC2086  # split at tabs
  set -- $_words_line "$@"
  unset IFS
  set +f
  patience 20 "$@" 9>&-
}

# answers: the first health command whose tool is there succeeds; without any, the socket has to exist.  The old files,
# put back, are asked for an answer alone: what is new may be part of the health commands.
answers() {
  [ -z "$socket" ] || [ -S "$socket" ] || return 1
  if [ -n "$restored" ]; then
    [ -z "$client" ] || client version >"$GPUNODE_IN/.answer" 2>&1
    return
  fi
  asked
}

# asked: the first health command whose tool is there succeeds
asked() {
  while IFS= read -r line; do
    have "${line%%"$TAB"*}" || continue
    words "$line" >"$GPUNODE_IN/.answer" 2>&1
    return
  done <"$backup/health"
}

# plugin_ok: containerd's plugin list calls the wanted plugin ok; true where nobody can be asked, 2 when the plugin has failed
plugin_ok() {
  [ -n "$plugin" ] && [ "$kind" = containerd ] || return 0
  client plugins ls >"$GPUNODE_IN/.plugins" 2>"$GPUNODE_IN/.answer" || return 1
  awk -v id="$plugin" '$2 == id && $NF == "ok" { found = 1 } ($2 == id || $1 == "io.containerd.cri.v1") && $NF == "error" { bad = 1 }
    END { exit bad ? 2 : !found }' "$GPUNODE_IN/.plugins"
}

# knows: the running engine has the runtimes it was to get; true where nobody can be asked.  $unknown names the other one
# sets: unknown
knows() {
  [ -n "$handlers" ] && [ -z "$restored" ] && [ "$plugin_was" != bad ] || return 0
  case $kind in
    docker) client info --format 'runtimes{{range $name, $runtime := .Runtimes}} {{$name}}{{end}}' ;;
    containerd) [ -z "$plugin" ] || ! have crictl || patience 20 crictl --runtime-endpoint "unix://$socket" info 9>&- ;;
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

# keeps: the containers that ran before run, as the engine has it; else $illness.  One whose process has ended, while
# others go on, ended by itself: engines do not stop their containers.
# sets: illness
keeps() {
  [ -s "$backup/running" ] || return 0
  for _ in 1 2 3 4 5 6; do
    containers >"$GPUNODE_IN/.running"
    awk 'FILENAME == ARGV[1] { now[$1]; next } !($1 in now)' "$GPUNODE_IN/.running" "$backup/running" >"$GPUNODE_IN/.missing"
    _keeps_lost='' _keeps_ended=''
    while read -r _keeps_name _keeps_pid; do
      if kill -0 "$_keeps_pid" 2>/dev/null; then _keeps_lost="$_keeps_lost $_keeps_name"; else _keeps_ended="$_keeps_ended $_keeps_name"; fi
    done <"$GPUNODE_IN/.missing"
    [ -n "$_keeps_lost" ] || break
    nap # it may still be finding them
  done
  illness="$unit has lost running containers:$_keeps_lost"
  [ -z "$_keeps_lost" ] || return 1
  illness="$unit took its containers along: none of them runs any more"
  [ "$(grep -c . "$GPUNODE_IN/.missing")" -lt "$(grep -c . "$backup/running")" ] || return 1
  illness=''
  [ -z "$_keeps_ended" ] || say note "ended while $unit was told:$_keeps_ended"
}

# ---------------------------------------------------------------- telling it

uptime_now() { # in whole seconds; no clock that somebody sets
  read -r now _ </proc/uptime
  echo "${now%%.*}"
}
nap() { sleep 0.3 2>/dev/null || sleep 1; }

# well: all that can be asked is as it should be; else $illness
# sets: illness final unknown
well() {
  : >"$GPUNODE_IN/.answer" # what the client said last
  illness="$unit is not active"
  unit_active || return 1
  illness="$unit does not answer"
  answers || return 1
  illness="$unit did not load its plugin $plugin"
  [ "$plugin_was" = bad ] || plugin_ok || {
    [ $? != 2 ] || final=1
    return 1
  }
  knows || {
    illness="$unit does not know the runtime $unknown"
    return 1
  }
  illness=''
}

# healthy: within a minute it is well, and stays up with the same process until $settle seconds after it was told
# sets: illness final
healthy() {
  begun=$(uptime_now) tries=0 final=''
  until well; do
    [ -z "$final" ] || return 1 # containerd has loaded its plugins when it answers: waiting changes nothing
    tries=$((tries + 1))
    case $(systemctl is-active "$unit" 2>/dev/null) in
      active | activating | reloading) ;;
      *) return 1 ;;
    esac
    [ "$tries" -le 120 ] && [ $(($(uptime_now) - begun)) -le 60 ] || return 1
    nap
  done
  pid=$(unit_pid)
  while :; do
    nap
    unit_active && [ "$(unit_pid)" = "$pid" ] || {
      illness="$unit does not stay up"
      return 1
    }
    [ $(($(uptime_now) - ${told_up:-begun})) -lt "$settle" ] || return 0
  done
}

# read_units: systemd reads its units again where the edit was of some; running containers keep their GPUs
# sets: illness losers
read_units() {
  [ -n "$reread" ] || return 0
  keep_gpus || {
    illness="systemd would take their GPUs from running containers: $losers"
    return 1
  }
  systemctl daemon-reload >>"$log" 2>&1 9>&-
}

# deed: what was done, for a reader
deed() { if [ "$verb" = await ]; then echo "$process started anew"; else echo "$unit ${verb}ed"; fi; }

# tell: restart or reload the unit and wait until it is healthy, with the containers it had; or await what it starts
# sets: illness told_at told_up losers
tell() {
  if [ "$verb" = await ]; then
    await
    return
  fi
  : >"$backup/running"
  ! unit_active || containers >"$backup/running"
  touch "$backup/told"
  flush "$backup/told"
  told_at=$(date +%s) told_up=$(uptime_now)
  read_units || return
  systemctl reset-failed "$unit" >/dev/null 2>&1
  patience 180 systemctl "$verb" "$unit" >>"$log" 2>&1 9>&- || {
    illness="$unit does not $verb"
    return 1
  }
  touch "$backup/took"
  healthy || {
    tail -n 5 "$GPUNODE_IN/.answer" >>"$log"
    return 1
  }
  keeps
}
