#!/bin/sh
# test.sh [all]: every stage of `make test`, or of `make test-all`.  A failed stage does not stop the next ones; the lab
# tests run last, so that pytest's closing line is the last one.  Nodes and volumes go away, also after a failure.
set -u
failed=''

stage() {
    name=$1
    shift
    echo "=== $name"
    "$@" || failed="$failed $name"
}

nodes() {
    gpunode lab list --format json | python -c 'import json, sys; print(*(n["name"] for n in json.load(sys.stdin)["nodes"]))'
}

# Nodes that were there before are somebody's own.
clean_up() {
    for node in $(nodes); do
        case " $before " in *" $node "*) ;; *) gpunode lab down "$node" >/dev/null ;; esac
    done
}

if [ "$(id -u)" != 0 ]; then
    echo "this needs root, because it starts systemd nodes with podman; without root there is: make check" >&2
    exit 2
fi

# what some unit tests use, and pass over without
missing=''
for tool in setpci:pciutils zsh:zsh fish:fish strace:strace busybox:busybox setfattr:attr setfacl:acl chromium:chromium \
    chromedriver:chromium-driver sshd:openssh-server; do
    command -v "${tool%:*}" >/dev/null || missing="$missing ${tool#*:}"
done
[ -e /usr/share/misc/pci.ids ] || missing="$missing pci.ids"
if [ -n "$missing" ]; then
    echo "installing$missing by apt-get"
    apt-get update -qq
    # shellcheck disable=SC2086 # names of packages
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $missing >/dev/null
    case $missing in *openssh-server*) # the tests start an sshd of their own; the machine's was not asked for
        [ ! -d /run/systemd/system ] || systemctl disable --quiet --now ssh.service ssh.socket ;;
    esac
fi

before=$(nodes 2>/dev/null)
trap clean_up EXIT
trap 'exit 130' HUP INT TERM

if [ "${1:-}" = all ]; then
    SCENARIOS=$(cd molecule && printf '%s\n' */molecule.yml | sed 's,/.*,,')
    unit=''
    lab='lab'
else
    unit='not extended'
    lab='lab and not real_driver and not extended'
fi

stage lint sh .ci/lint.sh all
export HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-ci}"
stage unit python -m pytest -q -n 2 tests/unit -m "$unit"
for scenario in $SCENARIOS; do
    stage "molecule-$scenario" python molecule/run.py "$scenario"
done
if [ "${1:-}" = all ]; then
    stage ansible-test sh .ci/sanity.sh
    stage benchmarks python -m benchmarks
fi
[ -z "$failed" ] || echo "=== failed before the lab tests:$failed"
export GPUNODE_REQUIRE_LAB=1
# three files at a time: most of them wait for engines and packages most of the time
stage lab python -m pytest -q -n 3 --dist loadfile --durations=20 tests/lab -m "$lab"
[ -z "$failed" ]
