# shellcheck shell=sh
# shellcheck disable=SC2030,SC2031 # of devices.sh: this is the head of the whole program
# What every script begins with, the probe, too: what gpunode keeps on the node, and which distribution this is.  It is put
# before them: one program, nothing to source on the node.

GPUNODE_STATE=/var/lib/gpunode

have() { command -v "$1" >/dev/null 2>&1; }

# A power cut can leave NUL bytes at the end of the journal, or half a line.  grep takes a file with NUL bytes for a binary
# one, and awk ends a line there, so that nothing reads the file itself.

# journal_text: the journal, each of its records from its first byte on a line of its own
journal_text() {
  [ ! -e "$GPUNODE_STATE/journal.jsonl" ] || tr -d '\000-\010\013-\037\177' <"$GPUNODE_STATE/journal.jsonl" | sed 's/{"v":[0-9]*,"id":"/\n&/g'
}

# journal_lines: the records of the journal that are whole
journal_lines() { journal_text | sed -n '/^{.*}$/p'; }

# unfinished [OP]: ids of operations that began and have no outcome (a run was killed, or the power went)
# shellcheck disable=SC2120 # the probe asks for all
unfinished() {
  journal_lines | awk -v op="\"op\":\"${1:+$1\"}" '
    index($0, op) && match($0, /"id":"[^"]*"/) { id = substr($0, RSTART + 6, RLENGTH - 7); open_[id] = /"phase":"intent"/ }
    END { for (id in open_) if (open_[id]) print id }'
}

LEASE=180 # seconds from a controller's last command on, by this node's clock

# lease_now: «SECONDS CONTROLLER RUN GENERATION» of the lease; 0 seconds for one that is over or was given back.  An end
# further off than LEASE is from a clock that was wrong.
lease_now() {
  [ ! -r "$GPUNODE_STATE/lease" ] || awk -v now="$(date +%s)" -v longest="$LEASE" -v released="$(cat "$GPUNODE_STATE/released" 2>/dev/null)" '
    NR == 1 {
      left = $1 ~ /^[0-9]+$/ ? $1 - now : 0
      if (left < 0 || longest < left || substr($0, index($0, " ") + 1) == released) left = 0
      print left, ($2 == "" ? "unknown" : $2), ($3 == "" ? "unknown" : $3), ($4 ~ /^[0-9]+$/ ? $4 : 0)
    }' "$GPUNODE_STATE/lease"
}

# family_manager: the package manager of this distribution: others can be installed as well (Fedora has an apt, Debian a dnf);
# nothing for one that is not known
family_manager() {
  # shellcheck disable=SC1091  # the node's
  case $(. /etc/os-release 2>/dev/null && printf ' %s %s ' "$ID" "$ID_LIKE") in
    *' debian '* | *' ubuntu '*) echo apt ;;
    *' rhel '* | *' fedora '* | *' centos '* | *' amzn '* | *' azurelinux '*) echo dnf ;;
    *suse* | *' sles '*) echo zypper ;;
    *' arch '*) echo pacman ;;
  esac
}
