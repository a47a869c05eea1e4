"""The stage of pairs: the network cards of one node with those of the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gpunode.core.accept import Reading, ToolRequest
from gpunode.core.accept.judge import floor_checks
from gpunode.core.accept.perftest import WRITE_BW, port_arguments, ports_of
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Check, RdmaPort
from gpunode.edge.accept.model import AcceptRun, Host
from gpunode.edge.accept.stages import make_row
from gpunode.edge.accept.tool import Answer, Tried, read, run_tool, with_retry
from gpunode.edge.load import load_floors

_PAIR_START = 3.0  # seconds until a server listens


def measure_pairs(hosts: Sequence[Host], run: AcceptRun) -> None:
    """The first host with the second, and so on; the last of an odd number with the first, which keeps what it had."""
    ready = [
        host for host in hosts if not any(r.ended == "refused" for (h, _), r in run.done.items() if h == host.name)
    ]
    for number in range(0, len(ready), 2):
        server, client = ready[number], ready[number + 1] if number + 1 < len(ready) else ready[0]
        if (server.name, "pair") in run.done and (client.name, "pair") in run.done:
            continue
        began = time.monotonic()
        readings = _pair(server, client, run)
        for host in {server.name: server, client.name: client}.values():
            if (host.name, "pair") not in run.done:
                run.keep(make_row(host, "pair", began, readings[host.name]))


def _pair(server: Host, client: Host, run: AcceptRun) -> dict[str, Reading]:
    """Each network card of one host with that of the other, in the order of their names; by host."""
    if server is client:
        return {server.name: _no_pair("there is no second host to measure the network cards with")}
    mine, theirs = ports_of(server.facts.rdma), ports_of(client.facts.rdma)
    if not mine or not theirs:
        lacking = ", ".join(host.name for host, ports in ((server, mine), (client, theirs)) if not ports)
        return dict.fromkeys(
            (server.name, client.name), _no_pair(f"{lacking} has no active port of InfiniBand or RoCE")
        )
    readings: list[tuple[Reading, Reading]] = []
    for port, other in zip(mine, theirs, strict=False):
        reading = _port_pair((server, port), (client, other), run)
        readings.append(
            (
                _with_port(reading, port, f"{client.name} {other.device}"),
                _with_port(reading, other, f"{server.name} {port.device}"),
            )
        )
        if not reading.measures:
            break  # the next card has no other tool, and no other node
    rest = [f"{h.name} {p.device}" for h, ports in ((server, mine), (client, theirs)) for p in ports[len(readings) :]]
    alone = _no_pair(f"without a partner, or not measured: {', '.join(rest)}").checks if rest else ()
    return {
        server.name: _of_ports(server, [one for one, _ in readings], alone, run),
        client.name: _of_ports(client, [one for _, one in readings], alone, run),
    }


def _of_ports(host: Host, readings: Sequence[Reading], more: Sequence[Check], run: AcceptRun) -> Reading:
    measures = tuple(one for reading in readings for one in reading.measures)
    floors = floor_checks(measures, host.machine, load_floors(), run.level)
    own = dict.fromkeys(check for reading in readings for check in reading.checks)
    return Reading(checks=(*own, *more, *floors), measures=measures)


def _port_pair(server: tuple[Host, RdmaPort], client: tuple[Host, RdmaPort], run: AcceptRun) -> Reading:
    """ib_write_bw from one card to the other."""
    ask = client[0].ask(run.level)
    where = f"{server[0].name} and {client[0].name}"
    near: list[bool] = []
    answer, retried = with_retry(
        "pair", lambda: _both_ends(server, client, ask, run, near), partial(read, WRITE_BW, ask)
    )
    if answer is None:
        return _no_pair(f"ib_write_bw is not on {where}", WRITE_BW.install)
    if isinstance(answer, GpunodeError):
        return _no_pair(answer.what, answer.fix)
    reading = read(WRITE_BW, ask, answer)
    beside = ", near" if answer.near and near[-1:] == [True] else ""
    measures = tuple(replace(one, algorithm=f"{one.algorithm}{beside}") for one in reading.measures)
    return Reading(checks=(*reading.checks, *retried), measures=measures)


def _both_ends(
    server: tuple[Host, RdmaPort], client: tuple[Host, RdmaPort], ask: ToolRequest, run: AcceptRun, near: list[bool]
) -> Tried:
    """The server in the background, the client to its address; `near`: whether the server ran beside its card."""
    (host, port), (other, its_port) = server, client
    served: list[Tried] = []
    thread = threading.Thread(
        target=lambda: served.append(
            run_tool(host, WRITE_BW, ask, run.targets, port_arguments(port), near=port.device)
        ), daemon=True,
    )  # fmt: skip
    thread.start()
    thread.join(_PAIR_START)
    if served:
        return served[0]
    target = host.detected.target
    assert target
    arguments = [*port_arguments(its_port), target.address or target.name]
    answer = run_tool(other, WRITE_BW, ask, run.targets, arguments, near=its_port.device)
    thread.join(90)
    near.append(bool(served) and isinstance(served[0], Answer) and served[0].near)
    return answer


def _with_port(reading: Reading, port: RdmaPort, other: str) -> Reading:
    rate = float(port.rate)
    measures = [replace(one, where=f"{port.device} with {other}", rate=rate) for one in reading.measures]
    return replace(reading, measures=tuple(measures))


def _no_pair(text: str, fix: str = "") -> Reading:
    return Reading(checks=(Check(id="accept.pair", status="not-proven", message=text, fix=fix),))
