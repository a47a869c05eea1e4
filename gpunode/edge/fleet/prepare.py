"""What a run will do, before anything is touched: the plans of hosts, or a plan's folder as it was reviewed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.late import dataclass, replace
from gpunode.core.plan.lockfile import Lock
from gpunode.core.spec import merge_spec
from gpunode.edge import detect
from gpunode.edge.desired import DesiredState, with_secrets
from gpunode.edge.detect import SETTLE, Detected, Targets
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import RunRow, asked
from gpunode.edge.fleet.workflow import plan_all
from gpunode.edge.lease import leased_to, without_leased
from gpunode.edge.saved import SavedPlan, load_plan


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The arguments of `provision`; `saved` is the plan's folder, None where the hosts were planned now."""

    hosts: list[HostPlan]
    targets: Targets
    desired: DesiredState
    saved: SavedPlan | None = None


def prepare(
    targets: Targets,
    spec_data: Mapping[str, Any],
    *,
    expected: Mapping[str, Any] | None = None,
    lock: Lock | None = None,
    look_up: bool = True,
    check: bool = False,
    on_done: Callable[[Detected], None] = lambda _host: None,
) -> Prepared:
    """Probe and plan; the only host may be a folder that `gpunode plan -o` wrote, with its own hosts, spec and lock.

    `spec_data` is gpunode.yml, of which a folder takes the secrets alone; `expected` is merged over either.  `look_up`:
    every package is looked up in the index of its repository.  `check`: provision will only rehearse.
    Raises InputError for what does not go with a folder, StaleError where its plan is not the plan of now,
    RefusedError where another run of this controller has one of the hosts.
    """
    folder = _plan_folder(targets, lock)
    saved = load_plan(folder) if folder else None
    targets = replace(targets, settle=0 if check else SETTLE)
    if saved:
        spec_data, targets, lock = with_secrets(saved.spec, spec_data), saved.reach(targets), saved.lock
    desired = DesiredState(merge_spec(spec_data, expected or {}), lock=lock, look_up=look_up)
    found = saved.find_hosts(targets) if saved else detect.find_hosts(targets)
    if not check:
        asked(lambda journal: journal.refuse_busy(host.host for host in found), None)
    probed = detect.one_name_each(detect.probe(found, targets, on_done=on_done))
    hosts = plan_all(probed if check or targets.break_lock else without_leased(probed), targets, desired)
    if saved:
        saved.check(hosts)
    return Prepared(hosts=hosts, targets=targets, desired=desired, saved=saved)


def runs_at_work(hosts: Sequence[Detected]) -> dict[str, str]:
    """Host → whose run is at work there, of this controller or another one, where that is so."""
    ours: dict[str, RunRow] = {}
    with suppress(GpunodeError):  # a journal that cannot be read hinders no look at the nodes
        ours = asked(lambda journal: journal.at_work(host.host for host in hosts), {})
    texts = {host: f"run {run.name} of this controller is at work on this node" for host, run in ours.items()}
    return {host.host: text for host in hosts if (text := texts.get(host.host) or leased_to(host))}


def _plan_folder(targets: Targets, lock: Lock | None) -> Path | None:
    folder = next((Path(host) for host in targets.hosts if Path(host).is_dir()), None)
    if folder is None:
        return None
    if len(targets.hosts) > 1 or targets.inventory or targets.local:
        raise InputError(f"{folder} is a plan's folder: it brings its own hosts", fix="name no others")
    if targets.limit or lock is not None:
        option = "--limit" if targets.limit else "--locked"
        raise InputError(f"{folder} is a plan's folder, and is run as a whole", fix=f"give {option} to gpunode plan")
    return folder
