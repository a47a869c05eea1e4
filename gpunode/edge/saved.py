"""The folder that `gpunode plan -o` writes, read for `provision DIR`: applied as it was saved, or refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpunode import __version__
from gpunode.core.errors import InputError, StaleError
from gpunode.core.late import dataclass, replace
from gpunode.core.plan.lockfile import Lock, parse_lock
from gpunode.core.plan.manifest import (
    MANIFEST_FORMAT,
    changed_connections,
    changed_files,
    changed_hosts,
    changed_steps,
    hash_of,
)
from gpunode.core.plan.playbook import HEADER, dump, make_playbook
from gpunode.core.plan.since import differences, state_of
from gpunode.core.printable import names
from gpunode.core.report.text import PLAN_FORMAT
from gpunode.edge.detect import Detected, Targets, find_hosts
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.workflow import FILES, INVENTORY, MANIFEST, PLAN, PLAYBOOK, on_this_machine
from gpunode.edge.report_data import FOUND
from gpunode.edge.ssh.shell import route


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """A plan's folder as it was read; `texts` are its files, which are read once and not again."""

    folder: Path
    plan: Mapping[str, Any]
    manifest: Mapping[str, Any]
    texts: Mapping[str, str]

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.plan["spec"])

    @property
    def sources(self) -> tuple[str, ...]:
        """The user's own inventories; () where the hosts were named on the command line."""
        return tuple(
            source if source.endswith(",") else str((self.folder / source).resolve())
            for source in self.plan["inventory"]
        )

    @property
    def lock(self) -> Lock | None:
        """The versions of `gpunode plan --locked`."""
        import tomli

        text = self.manifest["lock"]
        return None if text is None else parse_lock(tomli.loads(text), f"the lock in {self.folder / MANIFEST}")

    def reach(self, targets: Targets) -> Targets:
        """The hosts that were asked for, reached as `targets` says."""
        own = (str(self.folder / INVENTORY),)
        for source in self.sources:
            if not source.endswith(",") and not Path(source).exists():
                fix = "move both together, or plan again"
                raise InputError(f"{source} is not there: the plan in {self.folder} is of that inventory", fix=fix)
        return replace(targets, hosts=(), inventory=self.sources or own, limit=self.manifest["limit"], listing=None)

    def find_hosts(self, targets: Targets) -> list[Detected]:
        """The hosts that were planned, in that order.  Raises StaleError when others are meant, or reached, by now."""
        with tempfile.TemporaryDirectory(prefix="gpunode-plan-") as folder:  # 0700
            if not self.sources:  # the text that was compared, with nothing next to it
                copy = Path(folder) / INVENTORY
                copy.write_text(self.texts[INVENTORY], encoding="utf-8")
                targets = replace(targets, inventory=(str(copy),))
            found = {host.host: host for host in find_hosts(targets)}
        reached = {name: route(host.target) for name, host in found.items() if host.target}
        planned = {
            host: on_this_machine(values, self.folder) for host, values in self.manifest.get("connections", {}).items()
        }
        self._refuse([*changed_hosts(self.manifest, found), *changed_connections(planned, reached)])
        return [found[host] for host in self.manifest["hosts"]]

    def check(self, hosts: Sequence[HostPlan]) -> None:
        """Raise StaleError unless the plans made now have the saved steps, and their playbook is the saved one."""
        rows = map(json.loads, self.texts[FOUND].splitlines())
        states = {row["facts_hash"]: row["state"] for row in rows if "state" in row}
        if stale := check_fresh(self.plan, hosts, states):
            self._refuse(stale)
        plans = [host.planned.plan for host in hosts if host.planned]
        version = self.manifest["gpunode"]
        made_by = "" if version == __version__ else f" (gpunode {version} made the plan, this is {__version__})"
        self._refuse([text + made_by for text in changed_steps(self.manifest, plans)])
        if hash_of(dump(make_playbook(plans), HEADER)) != self.manifest["files"][PLAYBOOK]:
            self._refuse([f"{PLAYBOOK}: this gpunode would run other plays for the same steps{made_by}"])

    def _refuse(self, differences: Sequence[str]) -> None:
        if differences:
            raise StaleError(
                "; ".join(differences),
                expected=f"nothing else than when {self.folder} was written: a saved plan is applied as it is",
                fix=f"plan again: gpunode plan -o {self.folder} … (what you edited, ansible-playbook runs)",
            )


def load_plan(folder: Path) -> SavedPlan:
    """The folder, its files compared with its manifest.  Raises InputError, StaleError."""
    plan = _read(folder, PLAN, PLAN_FORMAT)
    if not (folder / MANIFEST).exists():
        raise StaleError(
            f"{folder} has no {MANIFEST}: gpunode cannot tell whether it is as it was reviewed",
            expected="a folder that gpunode plan -o wrote",
            fix=f"plan again: gpunode plan -o {folder} …",
        )
    manifest = _read(folder, MANIFEST, MANIFEST_FORMAT)
    texts = {}
    for name in manifest["files"]:
        path = folder / Path(name).name
        if path.is_file():
            texts[name] = path.read_bytes().decode(errors="replace")
    saved = SavedPlan(folder=folder, plan=plan, manifest=manifest, texts=texts)
    added = map("{}: was not there when the plan was made".format, not_of(folder))
    saved._refuse([*changed_files(manifest, texts), *added])
    return saved


def not_of(folder: Path) -> list[str]:
    """What lies in the folder beside a plan's files, unreviewed: Ansible runs what it finds next to an inventory."""
    written = (*FILES, FOUND) if (folder / MANIFEST).exists() else ()
    return sorted({path.name for path in folder.glob("*")}.difference(written, HARMLESS))


HARMLESS = (".git", ".gitignore", ".gitattributes", "README.md")  # nothing below them is read from here


def _read(folder: Path, name: str, known: int) -> dict[str, Any]:
    try:
        data = json.loads((folder / name).read_text(encoding="utf-8"))
        if (found := data.get("format")) != known:
            raise InputError(f"{folder / name}: format {found!r}", expected=str(known), fix="make the plan again")
        return dict(data)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        stated = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{folder}: no plan can be read: {stated}",
            expected=f"a folder with {PLAN}, {INVENTORY} and {PLAYBOOK}, as `gpunode plan -o DIR` writes it",
        ) from error


def check_fresh(
    recorded: Mapping[str, Any], hosts: Iterable[HostPlan], states: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What is no longer as `plan.json` has it, one sentence for each; empty when the plan still holds.

    `states` are the nodes' at that time, by facts_hash.
    """
    now = {h.host: h for h in hosts}
    stale = []
    for old in recorded["hosts"]:
        new = now.get(old["host"])
        if new is None or new.planned is None:
            stale.append(f"{old['host']}: could not be probed: {new.error if new else 'not in the inventory any more'}")
            continue
        files = new.planned.plan.files
        moved = sorted(p for p in {*old["files"], *files} if old["files"].get(p) != files.get(p))
        if moved:
            stale.append(f"{old['host']}: changed since the plan was made: {', '.join(moved)}")
        elif old["facts_hash"] != new.planned.plan.facts_hash:
            before, after = states.get(old["facts_hash"]), state_of(new.planned.facts)
            found = [*differences(before, after)] if before else ["packages, kernels, GPUs or services"]
            stale.append(f"{old['host']}: not what the plan rests on: {names(found)}")
    return stale
