"""detect → plan → verify, over hosts; provision.py is beside it.  The command line is a skin over these functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpunode import __version__
from gpunode.core.checks.health import Expected, health_checks
from gpunode.core.checks.pool import pool_checks
from gpunode.core.errors import GpunodeError
from gpunode.core.items.activation import how_stopped, stopped
from gpunode.core.items.first_boot import prepares
from gpunode.core.items.smoke import smoke_files
from gpunode.core.late import regex
from gpunode.core.model import ENDS, Archive, Check, HostResult, counted_checks, outcome_of
from gpunode.core.plan.lockfile import lock_text, name_lock
from gpunode.core.plan.manifest import make_manifest
from gpunode.core.plan.playbook import HEADER, dump, make_inventory, make_playbook
from gpunode.core.plan.question import Request
from gpunode.core.printable import json_text
from gpunode.core.report.text import PLAN_FORMAT
from gpunode.edge.ask import Talk, settle
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.detect import Detected, Targets, detect, one_name_each
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import last_good
from gpunode.edge.isolate import isolated
from gpunode.edge.share import in_its_share
from gpunode.edge.ssh.shell import Target, route
from gpunode.edge.state import write_private

ASK_SECONDS = 180  # a node without lists reads those of whole archives, more than once
SMOKE_SECONDS = 600  # several containers, one after the other
PLAYBOOK, INVENTORY, PLAN, CONFIG = "playbook.yml", "inventory.yml", "plan.json", "ansible.cfg"
MANIFEST = "manifest.json"
FILES = (PLAYBOOK, INVENTORY, PLAN, CONFIG, MANIFEST)
ANSIBLE_CFG = """\
# written by gpunode
[defaults]
inventory = {inventory}
host_key_checking = True
retry_files_enabled = False
forks = 50
# Ansible's own is 0.001: a process that waits for a package manager would keep a sixth of a core busy
internal_poll_interval = 0.01
[inventory]
any_unparsed_is_failed = True
[connection]
pipelining = True
[ssh_connection]
# without the last two a node behind a network that drops packets is waited for without end
ssh_args = -o ControlMaster=auto -o ControlPersist=10m -o ServerAliveInterval=20 -o ServerAliveCountMax=6
"""


def plan(
    targets: Targets, desired: DesiredState, *, on_done: Callable[[Detected], None] = lambda d: None
) -> list[HostPlan]:
    """Probe the hosts and plan each of them; errors stand beside the plans of the others."""
    found = detect(targets, on_done=on_done)
    return plan_all(found if targets.probes else one_name_each(found), targets, desired)


def write_plan(folder: Path, hosts: Sequence[HostPlan], targets: Targets, desired: DesiredState) -> None:
    """Write plan, inventory, playbook and ansible.cfg: to read, to keep in git, to run by plain ansible-playbook.

    plan.json also holds the spec, so that the plan can be checked against the nodes later without gpunode.yml; the
    manifest, which is written last, what the rest consists of (edge/saved.py).  Secrets
    are in none of them (core/secrets.py).
    """
    from gpunode.edge.report_data import FOUND, found_text, plans_data

    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    plans = [h.planned.plan for h in hosts if h.planned]
    # as paths from the folder, as Ansible reads ansible.cfg: both can be moved or cloned together
    known = inventory_sources(targets)
    sources = [one if one.endswith(",") else os.path.relpath(one, folder.resolve()) for one in known]
    connection = None if sources else {h.host: connection_vars(h.detected) for h in hosts}
    data = {
        "format": PLAN_FORMAT,
        "inventory": sources,
        "hosts": plans_data([h for h in hosts if h.planned], desired, found=False),
        "errors": plans_data([h for h in hosts if not h.planned], desired),
        "spec": desired.spec_data,
    }
    files = {
        PLAN: _json(data),
        FOUND: found_text(hosts, desired),
        INVENTORY: dump(make_inventory(plans, connection), HEADER),
        PLAYBOOK: dump(make_playbook(plans), HEADER),
        CONFIG: ANSIBLE_CFG.format(inventory=",".join([*sources, INVENTORY])),
    }
    errors = [h.host for h in hosts if not h.planned]
    lock = None if desired.lock is None else lock_text(desired.lock)
    targets_by_host = {h.host: h.detected.target for h in hosts if h.planned and h.detected.target}
    own = {host: portable(route(target), folder) for host, target in targets_by_host.items()} if sources else {}
    manifest = make_manifest(plans, errors, files, gpunode=__version__, limit=targets.limit, lock=lock, connections=own)
    for name, text in {**files, MANIFEST: _json(manifest)}.items():
        write_private(folder / name, text)


def _json(data: Any) -> str:
    return json_text(data, indent=2, default=str) + "\n"


_PATHS = regex(r"(?<![\w~./-])(/[^\s'\"]+)")  # in arguments of ssh, too: -i /a/key, -o IdentityFile=/a/key
_RELATIVE = regex(r"(?<![\w~./-])(~|\.\.?)(/[^\s'\"]+)")
_HAVE_PATHS = ("ansible_ssh_private_key_file", "ansible_ssh_args")


def portable(connection: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """How a host is reached, with paths that hold on another machine: from the home folder, or from the plan's.

    Keys of a repository that has the plan, too, lie where the repository is; those of a person at home.
    """
    folder = folder.resolve()
    home = Path.home().resolve()

    def shorter(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(match[1]))
        common = Path(os.path.commonpath([path, folder]))
        if common not in (home, *home.parents):
            return f"./{os.path.relpath(path, folder)}"
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else match[1]

    return {name: _PATHS.sub(shorter, text) if name in _HAVE_PATHS else text for name, text in connection.items()}


def on_this_machine(connection: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What `portable` has written, with the paths of this machine; absolute ones of older plans stay."""

    def whole(match: re.Match[str]) -> str:
        start = str(Path.home().resolve()) if match[1] == "~" else f"{folder.resolve()}/{match[1]}"
        return os.path.normpath(start + match[2])

    return {name: _RELATIVE.sub(whole, text) if name in _HAVE_PATHS else text for name, text in connection.items()}


def inventory_sources(targets: Targets) -> list[str]:
    """The user's own inventories, as paths that hold from any folder (a host list `a,b,` stays as it is)."""
    return [s if s.endswith(",") else str(Path(s).resolve()) for s in targets.inventory]


def connection_vars(host: Detected) -> dict[str, Any]:
    """Ansible's variables for a host that was named on the command line; never a password."""
    from gpunode.edge.ansible.inventory import inventory_vars

    if host.target is None:
        return {}
    return {k: v for k, v in inventory_vars(host.target).items() if not k.endswith("password")}


def verify(
    targets: Targets,
    desired: DesiredState,
    *,
    smoke: bool = True,
    on_done: Callable[[Detected], None] = lambda d: None,
    accepted: str | None = None,
) -> list[HostResult]:
    """Probe again: the plan must be empty, the GPUs healthy; then smoke.sh uses the GPU unless `smoke` is False.

    With `accepted` the hosts are also compared with their records of that acceptance (edge/records.py).
    Raises InputError.
    """
    found = detect(targets, on_done=on_done)
    results = verify_found(found, targets, desired, smoke=smoke)
    if accepted is None:
        return results
    from gpunode.edge.records import accepted_checks

    checks = accepted_checks({one.host: one.facts for one in found if one.facts}, accepted)
    return [_with_checks(result, checks.get(result.host, [])) for result in results]


def _with_checks(result: HostResult, more: Sequence[Check]) -> HostResult:
    """The result with further checks; that of a host which could not be verified stays, with its message."""
    if not more or not result.checks:
        return result
    return _of_checks(result.host, (*result.checks, *more))


def verify_found(
    found: Sequence[Detected], targets: Targets, desired: DesiredState, *, smoke: bool = True
) -> list[HostResult]:
    """`verify` of hosts that have just been probed."""
    return verify_planned(plan_all(found, targets, desired), targets, desired, smoke=smoke)


def verify_planned(
    hosts: Sequence[HostPlan], targets: Targets, desired: DesiredState, *, smoke: bool = True
) -> list[HostResult]:
    """`verify` of hosts that have just been planned."""
    expected = expected_gpus(hosts)
    smoked = _smoke([h for h in hosts if _can_smoke(h)], targets, desired) if smoke else {}
    pools = pool_checks({h.host: (h.planned.spec.rollout, h.planned.facts) for h in hosts if h.planned})
    results = []
    for host in hosts:
        found_out = in_its_share(
            host.host, partial(_verified, host, desired, smoked.get(host.host, ()), expected.get(host.host))
        )
        result = found_out if isinstance(found_out, HostResult) else found_out.of_host(host.host)
        results.append(_with_checks(result, pools.get(host.host, [])))
    return results


def expected_gpus(hosts: Sequence[HostPlan]) -> dict[str, Expected]:
    """The GPUs that each planned host should have, by its spec and by the journal of this controller."""
    planned = {host.host: host.planned for host in hosts if host.planned}
    try:
        known, unknown = last_good(list(planned)), ""
    except GpunodeError as error:  # what is there now can be checked all the same
        known, unknown = {}, error.what
    expected = {}
    for name, plan in planned.items():
        run, state = known.get(name, ("", {}))  # the last that ended well there
        before = {str(gpu.get("slot")): str(gpu.get("id")) for gpu in state.get("gpus") or ()}
        expected[name] = Expected(spec=plan.spec.verify, run=run, before=before, unknown=unknown)
    return expected


def plan_one(host: Detected, desired: DesiredState) -> HostPlan:
    """What one probe says is to be done on its host, or the error that is this host's alone."""
    facts = host.facts
    if host.error or facts is None:
        return HostPlan(detected=host, error=host.error or GpunodeError(f"{host.host}: no facts"))
    planned = in_its_share(host.host, lambda: desired.plan(host.host, facts, host.spec))
    if isinstance(planned, GpunodeError):
        return HostPlan(detected=host, error=planned)
    return HostPlan(detected=host, planned=planned)


def plan_all(found: Sequence[Detected], targets: Targets, desired: DesiredState) -> list[HostPlan]:
    """The plans of probed hosts, as their own package managers can carry them out (edge/ask.py)."""
    hosts = {one.host: plan_one(one, desired) for one in found}
    talks = {name: _talk(host, host.planned, desired) for name, host in hosts.items() if host.planned}
    names = list(talks)

    def ask(requests: Mapping[int, Request]) -> Mapping[int, tuple[str, int] | str]:
        return _ask({number: (hosts[names[number]].detected, request) for number, request in requests.items()}, targets)

    settle(list(talks.values()), ask)
    if desired.lock is not None and (refused := [n for n, talk in talks.items() if talk.planned.plan.problems]):
        unlocked = plan_all([hosts[name].detected for name in refused], targets, desired.unlocked())
        for name, free in ((one.host, one.planned) for one in unlocked if one.planned):
            mine = talks[name].planned
            talks[name].end(name_lock(mine.plan, desired.lock, mine.facts, free.spec, free.plan))
    return [replace(host, planned=talks[name].planned) if name in talks else host for name, host in hosts.items()]


def _talk(host: HostPlan, planned: Planned, desired: DesiredState) -> Talk:
    def replan(archive: Archive) -> Planned:
        assert host.detected.facts
        return desired.plan(host.host, host.detected.facts, host.detected.spec, archive=archive)

    return Talk(planned=planned, knowledge=desired.knowledge, replan=replan, lacking=desired.lacking)


def _ask(asked: Mapping[int, tuple[Detected, Request]], targets: Targets) -> dict[int, tuple[str, int] | str]:
    """What the nodes answer, or why none did."""
    from gpunode.core.remote import program
    from gpunode.edge.ssh.many import run_many
    from gpunode.node import script

    text = script("packages.sh")
    pairs = {n: (one.target, program(text, request)) for n, (one, request) in asked.items() if one.target}
    found: dict[int, tuple[str, int] | str] = dict.fromkeys(
        asked, "this is a saved probe: the package manager of its node was not asked"
    )
    for number, ran in zip(pairs, run_many(list(pairs.values()), reach=targets.reach(ASK_SECONDS)), strict=True):
        found[number] = f"the package manager was not asked: {ran.error.what}" if ran.error else (ran.stdout, ran.rc)
    return found


def _can_smoke(host: HostPlan) -> bool:
    """Not of a machine that is prepared without its GPU: what can be proven there, the first boot proves."""
    if host.planned is None or host.planned.plan.problems:
        return False
    facts, spec = host.planned.facts, host.planned.spec
    return bool(facts.gpus) and (spec.image.load or bool(facts.driver.loaded))


def _smoke(hosts: Sequence[HostPlan], targets: Targets, desired: DesiredState) -> dict[str, tuple[Check, ...]]:
    """smoke.sh on each host, each with its own request."""
    from gpunode.edge.doctor import smoke_checks
    from gpunode.edge.ssh.many import Ran, run_many

    def pair(host: HostPlan) -> tuple[Target, str]:
        assert host.detected.target
        return host.detected.target, _smoke_program(host, desired)

    def checks(ran: Ran) -> tuple[Check, ...]:
        return _not_smoked(ran.error) if ran.error else smoke_checks(ran.stdout, ran.rc)

    pairs = {host.host: isolated(host.host, partial(pair, host)) for host in hosts}
    found: dict[str, tuple[Check, ...] | GpunodeError] = {h: p for h, p in pairs.items() if isinstance(p, GpunodeError)}
    ran = run_many([p for p in pairs.values() if not isinstance(p, GpunodeError)], reach=targets.reach(SMOKE_SECONDS))
    found |= {one.target.name: in_its_share(one.target.name, partial(checks, one)) for one in ran}
    return {h: _not_smoked(c) if isinstance(c, GpunodeError) else c for h, c in found.items()}


def _smoke_program(host: HostPlan, desired: DesiredState) -> str:
    from gpunode.core.remote import program
    from gpunode.node import script

    assert host.planned
    facts, asked = host.planned.facts, desired.smoke(host.planned)
    still = [one for one in facts.runtimes if stopped(one)]  # none of a Kubernetes distribution
    names = {"docker"} if any(one.name == "containerd" for one in still) else set()  # whose daemon it is, too
    engines = [name for name in asked["runtimes"] if name not in names and facts.runtime(name) not in still]
    return program(script("smoke.sh"), smoke_files({**asked, "runtimes": engines}))


def _not_smoked(error: GpunodeError) -> tuple[Check, ...]:
    return (Check(id="smoke.ran", status="failed", message=error.stated, fix=error.fix),)


def _verified(host: HostPlan, desired: DesiredState, smoked: Sequence[Check], expected: Expected | None) -> HostResult:
    if host.error:
        return host.error.of_host(host.host)
    assert host.planned
    problems, facts, fix = host.planned.plan.problems, host.planned.facts, "gpunode provision"
    compared = not problems and (facts.gpus or prepares(host.planned.spec))
    left = desired.pending(host.planned) if compared else {}
    checks = [Check(id="plan.problem", status="refused", message=p.what, fix=p.fix) for p in problems]
    checks += [
        Check(id=f"plan.{k.role}.{k.option}", status="pending", message=f"{k.name}: {text}", fix=fix)
        for k, text in left.items()
    ]
    if compared and not left:
        checks.append(Check(id="plan.empty", status="passed", message="the node is what the spec asks for"))
    wanted = host.planned.spec.driver.branch != "none"
    starting = {f"{key.name.removeprefix('service ')}.service" for key in left}
    said = {how_stopped(facts, one) for one in facts.runtimes if one.unit in starting} | {p.what for p in problems}
    health = health_checks(facts, desired.knowledge, driver=wanted, expected=expected)
    checks += [*(check for check in health if check.message not in said), *smoked]
    return _of_checks(host.host, checks)


def _of_checks(host: str, checks: Sequence[Check]) -> HostResult:
    counts = counted_checks(checks, "passed", *ENDS, "warning", "not-proven", "skipped")
    return HostResult(host=host, outcome=outcome_of(checks), message=counts or "nothing to check", checks=tuple(checks))
