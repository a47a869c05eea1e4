"""The end of a run: the hosts that it worked on are given back, so that nobody waits for a lease to run out."""

from __future__ import annotations

import base64
import contextlib
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.plan.playbook import dump
from gpunode.core.remote import program, signature
from gpunode.edge.ansible.runner import Event, run_playbook
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.workflow import ansible_arguments, play_options
from gpunode.edge.ssh.connection import NotServed
from gpunode.edge.ssh.many import run_many
from gpunode.edge.state import controller_name, write_private
from gpunode.node import script

CONNECT, SECONDS = 5.0, 20.0  # at most: a lease that cannot be given back runs out by itself
INTERRUPTED = 3.0  # seconds, where a person waits for the end
WORKED = ("ok", "changed", "failed")  # kinds of events after which a host may have a lease of this run


def may_hold(event: Event) -> bool:
    """Whether the host of an event was reached, so that it may have a lease of this run."""
    return event.kind in WORKED


def without_leased(hosts: Iterable[Detected]) -> list[Detected]:
    """The hosts, with an error where another controller is at work: nothing is planned there."""
    return [replace(host, error=refusal) if (refusal := _refusal(host)) else host for host in hosts]


def _refusal(host: Detected) -> RefusedError | None:
    if not (text := leased_to(host)):
        return None
    return RefusedError(text, fix="wait for it to end, or take the node from it: --break-lock")


def leased_to(host: Detected) -> str:
    """Which other controller is at work on the host; "" where none is."""
    controller, _, run = (host.facts.lease if host.facts else "").partition(" ")
    if controller in ("", controller_name()):
        return ""
    return f"the controller {controller} is at work on this node (run {run})"


def give_back(
    hosts: Sequence[Detected],
    targets: Targets,
    folder: Path,
    inventory: Sequence[str],
    *,
    run: str,
    generation: int,
    ended: Mapping[str, str] | None = None,
) -> None:
    """End the run's leases on `hosts`: one connection each, all at once; Ansible where paramiko cannot serve one.

    `folder` is the run's, `inventory` what Ansible had, `ended` what became of the run on a host (done | failed): one
    that is not in it was cut off.  What fails is passed over.
    """
    for how in ("done", "failed", ""):
        alike = [host for host in hosts if (ended or {}).get(host.host, "") == how]
        if alike:
            request = signature(run=run, controller=controller_name(), generation=str(generation), ended=how)
            _give_back(alike, targets, folder, inventory, request)


def _give_back(
    hosts: Sequence[Detected], targets: Targets, folder: Path, inventory: Sequence[str], request: Mapping[str, bytes]
) -> None:
    text = program(script("release.sh"), request)
    # a `stop` of its own: at the end of a run that was interrupted its hosts are given back, too
    seconds = INTERRUPTED if targets.stop.is_set() else SECONDS
    quick = replace(targets, connect_timeout=min(CONNECT, targets.connect_timeout), stop=threading.Event())
    ran = run_many([(host.target, text) for host in hosts if host.target], reach=quick.reach(seconds))
    left = {one.target.name for one in ran if isinstance(one.error, NotServed)}
    if left:
        _by_ansible([host for host in hosts if host.host in left], text, targets, folder, inventory)


def _by_ansible(hosts: Sequence[Detected], text: str, targets: Targets, folder: Path, inventory: Sequence[str]) -> None:
    # a word without quotes and braces: Ansible would read both
    command = f"echo {base64.b64encode(text.encode()).decode()} | base64 -d | sh"
    task = {"name": "End the run", "ansible.builtin.raw": command, "changed_when": False}
    play: dict[str, Any] = {"name": "Release", "hosts": "all", "gather_facts": False, "tasks": [task]}
    playbook = folder / f"release-{secrets.token_hex(4)}.yml"
    limit = playbook.with_suffix(".limit")
    write_private(playbook, dump([play]))
    write_private(limit, "".join(f"{host.host}\n" for host in hosts))
    with contextlib.suppress(GpunodeError):
        run_playbook(
            folder,
            playbook.name,
            inventory=inventory,
            options=play_options(targets, hosts),
            arguments=[*ansible_arguments(targets), "--limit", f"@{limit}", f"--timeout={CONNECT:.0f}"],
        )
