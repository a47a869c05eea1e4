"""A plan → folders for `ansible-runner transmit | worker | process`, for fleets too large for one controller."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpunode.core.errors import InputError
from gpunode.core.plan.playbook import HEADER, dump, make_inventory, make_playbook, split
from gpunode.core.secrets import references_in, seal_spec
from gpunode.edge.detect import Targets
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.workflow import (
    ANSIBLE_CFG,
    CONFIG,
    INVENTORY,
    PLAYBOOK,
    ansible_arguments,
    connection_vars,
    inventory_sources,
)
from gpunode.edge.state import next_generation, run_name, write_private

SHARDS = "shards"
_VARIABLES = ("group_vars", "host_vars")  # Ansible reads them beside an inventory file


def write_shards(folder: Path, hosts: Sequence[HostPlan], targets: Targets, count: int) -> list[Path]:
    """Write folder/shards/1 to `count`, each an ansible-runner private data directory; fewer when hosts are fewer.

    A shard has the plays of its hosts, and a copy of the user's inventories: vaults stay closed, and no password, key
    or vault password is copied.  Shards of an earlier plan in `folder` are removed.  Raises InputError when no host
    has anything to do, or when a secret is in gpunode.yml, which workers do not have.
    """
    _check_secrets(hosts)
    plans = [h.planned.plan for h in hosts if h.planned and h.planned.plan.steps]
    if not plans:
        raise InputError("no host has anything to do", expected="steps to share out", fix="leave --shards away")
    connection = None if targets.inventory else {h.host: connection_vars(h.detected) for h in hosts}
    for old in (folder / SHARDS).glob("[0-9]*"):
        shutil.rmtree(old)
    written, run, generation = [], run_name(), next_generation()
    for number, members in enumerate(split(plans, count), 1):
        shard = folder / SHARDS / str(number)
        project = shard / "project"
        for made in (shard.parent, shard, project, shard / "env"):
            made.mkdir(parents=True, mode=0o700, exist_ok=True)
        names = {plan.host for plan in members}
        own = connection and {host: values for host, values in connection.items() if host in names}
        write_private(project / INVENTORY, dump(make_inventory(members, own), HEADER))
        write_private(project / PLAYBOOK, dump(make_playbook(members), HEADER))
        sources = [*_copied(inventory_sources(targets), project), INVENTORY]
        write_private(project / CONFIG, ANSIBLE_CFG.format(inventory=",".join(sources)))
        words = [w for w in ansible_arguments(targets, run=run, generation=generation) if not w.startswith("--vault")]
        words += [f"--forks={targets.forks}", *(f"--inventory={source}" for source in sources)]
        write_private(shard / "env" / "cmdline", shlex.join(words) + "\n")
        # ansible-runner turns the check of host keys off where nobody says otherwise
        write_private(shard / "env" / "envvars", dump({"ANSIBLE_HOST_KEY_CHECKING": "True"}))
        written.append(shard)
    return written


def _check_secrets(hosts: Sequence[HostPlan]) -> None:
    """A worker takes secrets from the inventory's gpunode_spec alone: raise InputError for those that it lacks."""
    lacking: dict[str, str] = {}  # key of the spec → the first host that needs it
    for host in hosts:
        steps = host.plan.steps if host.plan else ()
        known = seal_spec(host.detected.spec, recorded=True)[1].values
        for reference, key in references_in([step.value for step in steps]).items():
            if reference not in known:
                lacking.setdefault(key, host.host)
    if lacking:
        keys, host_name = ", ".join(sorted(lacking)), next(iter(lacking.values()))
        raise InputError(
            f"{keys} of gpunode.yml: a secret that shards cannot carry (needed by {host_name}); no shard was written",
            expected="secrets in the inventory's variable gpunode_spec, which ansible-runner's workers read",
            fix="move it there, best in a vault (group_vars/all.yml: gpunode_spec), or run gpunode provision from here",
        )


def _copied(sources: Sequence[str], project: Path) -> list[str]:
    """The user's inventories, copied into `project`, as paths from there; a host list `a,b,` stays as it is."""
    found = []
    for number, source in enumerate(sources):
        if source.endswith(","):
            found.append(source)
            continue
        path, target = Path(source), project / "inventories" / str(number)
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            target.mkdir(parents=True)
            shutil.copy2(path, target / path.name)
            for name in _VARIABLES:
                if (path.parent / name).is_dir():
                    shutil.copytree(path.parent / name, target / name)
        found.append(str((target / path.name).relative_to(project)))
    return found
