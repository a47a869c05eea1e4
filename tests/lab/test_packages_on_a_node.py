"""packages.sh with the real apt and dpkg of a node: trouble of every kind, under both shells that are /bin/sh there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpunode.core.items.package import locked_by, packages_request
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.lab import Lab
from gpunode.node import script

pytestmark = pytest.mark.lab

SOURCE = "/etc/apt/sources.list.d/gp.sources"
DOWN = "/etc/apt/sources.list.d/down.sources"
# A repository of tiny packages: gp-a needs gp-b in exactly its own version, gp-bad's postinst fails, gp-big needs 1 TB.
REPOSITORY = r"""
set -e
deb() {
  d=$(mktemp -d) && mkdir -p $d/DEBIAN /srv/gp
  printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: x\nDescription: x\n' $1 $2 >$d/DEBIAN/control
  [ -z "$3" ] || echo "Depends: $3" >>$d/DEBIAN/control
  [ -z "$4" ] || echo "Installed-Size: $4" >>$d/DEBIAN/control
  [ $1 != gp-bad ] || { printf '#!/bin/sh\ntest -e /gp-fixed\n' >$d/DEBIAN/postinst; chmod 755 $d/DEBIAN/postinst; }
  dpkg-deb -b $d /srv/gp/$1_$2.deb >/dev/null
}
for v in 1.0 2.0; do deb gp-a $v "gp-b (= $v)"; deb gp-b $v; deb gp-d $v "gp-e (= $v)"; deb gp-e $v; done
deb gp-bad 1.0; deb gp-big 1.0 '' 999999999; deb gp-c 1.0
cd /srv/gp
for f in *.deb; do
  dpkg-deb -f $f
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' $f $(stat -c %s $f) $(sha256sum <$f | cut -d' ' -f1)
done >Packages
printf 'Types: deb\nURIs: file:/srv/gp\nSuites: ./\nTrusted: yes\n' >/etc/apt/sources.list.d/gp.sources
printf 'Types: deb\nURIs: http://127.0.0.1:9\nSuites: ./\n' >/etc/apt/sources.list.d/down.sources
"""

Packages = Callable[..., Outcome]


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Lab]) -> Lab:
    lab: Lab = lab_up(engines=())
    made = lab.run(lab.nodes[0], "sh -s", stdin=REPOSITORY)
    assert made.returncode == 0, made.stderr
    return lab


@pytest.fixture(scope="module", params=["dash", "bash"])
def shell(request: pytest.FixtureRequest, node: Lab) -> str:
    """A shell that the node has; every test below runs in each, on a node without the test's packages."""
    name = str(request.param)
    node.run(
        node.nodes[0],
        "rm -f /gp-fixed /var/lib/apt/lists/*_srv_gp_*; apt-mark unhold gp-a gp-b gp-c; "
        "dpkg -P gp-a gp-b gp-c gp-d gp-e gp-bad gp-big",
    )
    return name


@pytest.fixture
def packages(node: Lab, shell: str) -> Packages:
    def run(value: dict[str, Any], *, check: bool = False, wait: int = 2) -> Outcome:
        text = program(script("packages.sh"), packages_request(value, check=check, wait=wait))
        done = node.run(node.nodes[0], f"{shell} -s", stdin=text)
        outcome = parse_outcome(done.stdout, done.returncode)
        return outcome if not locked_by(done.stdout) else Outcome(status="failed", message=f"locked: {outcome.message}")

    return run


def want(*names: str, version: str = "", **more: Any) -> dict[str, Any]:
    return {"install": [{"name": name, "version": version, **more} for name in names], "refresh": [SOURCE]}


def installed(node: Lab) -> dict[str, str]:
    listed = node.run(node.nodes[0], "dpkg-query -W -f '${Package} ${Version}\\n' 'gp-*'").stdout
    return {line.split()[0]: line.split()[1] for line in listed.splitlines() if len(line.split()) == 2}


def journal(node: Lab) -> list[dict[str, Any]]:
    text = node.run(node.nodes[0], "cat /var/lib/gpunode/journal.jsonl").stdout
    return [json.loads(line) for line in text.splitlines()]


def test_check_mode_installs_nothing_and_the_run_does_what_it_said(node: Lab, packages: Packages) -> None:
    value = want("gp-a", version="1.0", hold=True)
    would = packages(value, check=True)
    assert (would.status, would.texts, installed(node)) == ("changed", ("install gp-a 1.0", "hold gp-a"), {})
    done = packages(value)
    assert (done.status, done.texts) == ("changed", ("held gp-a", "installed gp-a 1.0", "installed gp-b 1.0"))
    last = journal(node)[-1]
    assert (last["phase"], last["held"], [p["name"] for p in last["added"]]) == ("done", ["gp-a"], ["gp-a", "gp-b"])
    assert packages(value) == Outcome(status="unchanged", message="all packages are up to date")


def test_a_package_that_gpunode_holds_may_change_and_stays_held(node: Lab, packages: Packages) -> None:
    assert packages(want("gp-a", version="2.*", hold=True)).status == "changed"
    assert installed(node) == {"gp-a": "2.0", "gp-b": "2.0"}
    assert node.run(node.nodes[0], "apt-mark showhold").stdout.split() == ["gp-a"]


def test_what_gpunode_holds_changes_when_another_package_needs_it(node: Lab, packages: Packages) -> None:
    packages(want("gp-e", hold=True))
    assert packages(want("gp-d", version="1.0")).status == "changed"
    found = installed(node)
    assert (found["gp-d"], found["gp-e"]) == ("1.0", "1.0")
    assert packages({"remove": ["gp-d", "gp-e"]}).status == "changed"


def test_a_removal_nobody_asked_for_is_refused(node: Lab, packages: Packages) -> None:
    node.run(node.nodes[0], "apt-mark unhold gp-a")
    outcome = packages({"remove": ["gp-b"]})
    assert (outcome.status, outcome.message) == ("refused", "the package manager would also remove gp-a")
    assert "gp-b" in installed(node)


def test_what_is_to_be_removed_goes(node: Lab, packages: Packages) -> None:
    assert packages({"remove": ["gp-a", "gp-b"]}).texts == ("removed gp-a 2.0", "removed gp-b 2.0")


def test_a_package_that_somebody_else_holds_is_left_alone(node: Lab, packages: Packages) -> None:
    node.run(node.nodes[0], "apt-get install -y gp-b=1.0 && apt-mark hold gp-b")
    for name in ("gp-b", "gp-a"):  # by name, and because another one needs it
        outcome = packages(want(name, version="2.0"))
        printed = "gp-b has to change, and is held, not by gpunode"
        assert (outcome.status, outcome.message, outcome.fix) == (
            "refused",
            printed,
            "apt-mark unhold gp-b, if it may change",
        )
    assert installed(node) == {"gp-b": "1.0"}
    node.run(node.nodes[0], "apt-mark unhold gp-b; dpkg -P gp-b")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"install": ["gp-c"], "refresh": [DOWN]},
            "the repository in /etc/apt/sources.list.d/down.sources cannot be read",
        ),
        ({"install": ["gp-c"], "refresh": ["/etc/apt/none.sources"]}, "/etc/apt/none.sources does not exist"),
        (want("gp-c", version="9.9"), "Version '9.9' for 'gp-c' was not found"),
        (want("gp-big"), "MiB free and the packages need"),
    ],
    ids=["repository down", "sources missing", "version unknown", "disk full"],
)
def test_what_cannot_be_done_is_said_and_installs_nothing(
    node: Lab, packages: Packages, value: dict[str, Any], says: str
) -> None:
    before = installed(node)
    outcome = packages(value)
    assert outcome.status == "failed"
    assert says in outcome.message
    assert outcome.fix
    assert installed(node) == before


def test_the_holder_of_the_lock_is_named_after_waiting(node: Lab, packages: Packages) -> None:
    hold = "import fcntl,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(60)"
    node.run(node.nodes[0], f'systemd-run --unit=holder python3 -c "{hold}"; sleep 1')
    outcome = packages(want("gp-c"))
    node.run(node.nodes[0], "systemctl stop holder")
    assert outcome.message.startswith("locked: the package manager is locked: python3 (PID ")
    assert packages(want("gp-c")).status == "changed"


def test_an_interrupted_dpkg_and_its_journal_are_finished_first(node: Lab, packages: Packages) -> None:
    broken = packages(want("gp-bad"))
    assert broken.status == "failed" and "gp-bad" not in installed(node), "a transaction that broke off is undone"
    node.run(node.nodes[0], "dpkg -i /srv/gp/gp-bad_1.0.deb")  # fails, and leaves it half configured
    intent = '{"v":1,"id":"killed","at":"2026-01-01T00:00:00Z","op":"packages","phase":"intent"}'
    node.run(node.nodes[0], f"touch /gp-fixed; echo '{intent}' >>/var/lib/gpunode/journal.jsonl")
    outcome = packages(want("gp-bad"))
    assert (outcome.status, outcome.notes) == ("unchanged", ("dpkg was interrupted: dpkg --configure -a",))
    assert ("killed", "failed") in [(line["id"], line["phase"]) for line in journal(node)]
    assert node.run(node.nodes[0], "dpkg --audit").stdout == ""
