"""The end of a run: the hosts that it worked on are given back, so that nobody waits for a lease to run out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpunode.core.errors import RefusedError
from gpunode.core.remote import program, signature
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.ssh.many import run_many
from gpunode.edge.state import controller_name
from gpunode.node import script

CONNECT, SECONDS = 5.0, 20.0  # at most: a lease that cannot be given back runs out by itself
INTERRUPTED = 3.0  # seconds, where a person waits for the end
WORKED = ("ok", "changed", "failed")  # kinds of events after which a host may have a lease of this run


def without_leased(hosts: Iterable[Detected]) -> list[Detected]:
    """The hosts, with an error where another controller is at work: nothing is planned there."""
    fix = "wait for it to end, or take the node from it: --break-lock"
    return [replace(one, error=RefusedError(text, fix=fix)) if (text := leased_to(one)) else one for one in hosts]


def leased_to(host: Detected) -> str:
    """Which other controller is at work on the host; "" where none is."""
    controller, _, run = (host.facts.lease if host.facts else "").partition(" ")
    if controller in ("", controller_name()):
        return ""
    return f"the controller {controller} is at work on this node (run {run})"


def give_back(
    hosts: Sequence[Detected], targets: Targets, *, run: str, generation: int, ended: Mapping[str, str] | None = None
) -> None:
    """End the run's leases on `hosts`: one connection each, all at once.

    `ended` is what became of the run on a host (done | failed): one that is not in it was cut off.  What fails is
    passed over.
    """

    def request(how: str) -> Mapping[str, bytes]:
        return signature(run=run, controller=controller_name(), generation=str(generation), ended=how)

    programs = {how: program(script("release.sh"), request(how)) for how in ("done", "failed", "")}
    pairs = [(host.target, programs[(ended or {}).get(host.host, "")]) for host in hosts if host.target]
    # a `stop` of its own: at the end of a run that was interrupted its hosts are given back, too
    seconds = INTERRUPTED if targets.stop.is_set() else SECONDS
    quick = replace(targets, connect_timeout=min(CONNECT, targets.connect_timeout), stop=threading.Event())
    run_many(pairs, reach=quick.reach(seconds))
