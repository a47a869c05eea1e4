#!/bin/sh
# The whole way on one throw-away node, from nothing to proven.  KEEP=1 leaves the node for you to look at.
set -eu
lab=${XDG_STATE_HOME:-$HOME/.local/state}/gpunode/lab/labs/demo

say() {
    printf '\n\033[1m# %s\033[0m\n' "$1"
}

show() {
    printf '\033[2m$ gpunode %s\033[0m\n' "$*"
    gpunode "$@"
}

# Exit status 3 is the good news here: there is something to do.
show_pending() {
    code=0
    show "$@" || code=$?
    [ "$code" = 3 ] || { echo "expected differences (exit 3), got $code" >&2; exit 1; }
}

clean_up() {
    [ -n "${KEEP:-}" ] || gpunode lab down demo >/dev/null 2>&1 || true
}
trap clean_up EXIT
trap 'exit 130' HUP INT TERM

say 'A Debian 12 node with systemd, sshd, containerd and Docker. Its H100 is faked, as are kernel and driver packages.'
show lab up --name demo --gpu h100 --nouveau

# what is wanted: the lab's own package sources, a driver branch, and a CUDA toolkit on the host
spec=$lab/demo.yml
wanted() {
    { cat "$lab/gpunode.yml" && printf 'driver:\n  branch: "%s"\ncuda:\n  versions: ["12.8"]\n' "$1"; } >"$spec"
}
wanted 580

say 'What is it? One SSH session that changes nothing.'
show detect -i "$lab/hosts.yml"

say 'What would be done, and why? Nothing is touched yet.'
show_pending plan -i "$lab/hosts.yml" -c "$spec"

say 'Do it: a generated Ansible playbook installs driver, CUDA and toolkit, and rewrites containerd and Docker.'
show provision -i "$lab/hosts.yml" -c "$spec" --yes

say 'Prove it: the plan is empty, and containers really went through the nvidia runtime.'
show verify -i "$lab/hosts.yml" -c "$spec"

say 'Once more: nothing to do.'
show provision -i "$lab/hosts.yml" -c "$spec" --yes

say 'A later branch in gpunode.yml: what an upgrade would change.'
wanted 595
show_pending plan -i "$lab/hosts.yml" -c "$spec"

if [ -n "${KEEP:-}" ]; then
    say 'The node stays: gpunode lab ssh demo-1; gpunode lab down demo'
fi
