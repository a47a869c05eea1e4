"""Options of provision that say how a fleet is gone through."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import Command, options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpunode.core.model import HostResult
    from gpunode.edge.ansible.runner import Event
    from gpunode.edge.fleet.driver import RunCallbacks
    from gpunode.edge.fleet.events import EventLog

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """Seconds: 90, 90s, 30m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+)([smh]?)", str(value))
        if not found:
            self.fail(f"{value!r} is no time: write 90s, 30m or 2h", param, ctx)
        return int(found[1]) * _UNITS[found[2] or "s"]


MAX_FAILURES = click.option(
    "--max-failures", metavar="N|N%", help="Stop starting hosts when more than this many have failed."
)
_OPTIONS = (
    click.option("--waves", metavar="1,10%,100%", help="Cumulative batch sizes: hosts done after each wave."),
    click.option(
        "--max-unavailable", metavar="N|N%", help="Hosts of a pool that may be running, failed or down at any time."
    ),
    MAX_FAILURES,
    click.option(
        "--soak", type=Duration(), metavar="TIME", help="Time to wait after a wave before its hosts are checked again."
    ),
)
_RUN = (
    click.option("--deadline", type=Duration(), metavar="TIME", help="Start no further host after this time."),
    click.option("--break-lock", is_flag=True, help="Take nodes over from another controller that holds them."),
    click.option(
        "--events",
        "events_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Append events to this file, as JSON lines.",
    ),
)


def rollout_options(command: Command) -> Command:
    """The command gets `rollout`: what the flags say, as gpunode.yml has it; and what `run_options` give."""

    @functools.wraps(command)
    def with_rollout(*args: Any, **given: Any) -> Any:
        rollout: dict[str, Any] = {
            name: given.pop(name) for name in ("waves", "max_unavailable", "max_failures", "soak")
        }
        if rollout["waves"]:
            rollout["waves"] = [wave.strip() for wave in rollout["waves"].split(",")]
        if rollout["soak"] is not None:
            rollout["soak"] = int(rollout["soak"])
        stated = {name: value for name, value in rollout.items() if value is not None}
        return command(*args, rollout=stated, **given)

    return options(*_OPTIONS, section="Rollout")(run_options(with_rollout))  # type: ignore[return-value]


def run_options(command: Command) -> Command:
    """The command gets `deadline` in seconds, `break_lock` and `events`."""

    @functools.wraps(command)
    def with_events(*args: Any, **given: Any) -> Any:
        deadline, path = given.pop("deadline"), given.pop("events_file")
        events = _event_log(path) if path else None
        try:
            with _terminable():
                return command(*args, deadline=deadline or math.inf, events=events, **given)
        finally:
            if events:
                events.close()

    return options(*_RUN, section="Rollout")(with_events)  # type: ignore[return-value]


def with_log(callbacks: RunCallbacks, log: EventLog | None) -> RunCallbacks:
    """The callbacks, and a file of events beside them."""
    from dataclasses import replace

    if log is None:
        return callbacks

    def event(event: Event) -> None:
        callbacks.event(event)
        log.task(event)

    def wave(pool: str, number: int, what: str) -> None:
        callbacks.wave(pool, number, what)
        log.wave(pool, number, what)

    def result(ended: HostResult) -> None:
        callbacks.result(ended)
        log.host(ended)

    def node(host: str, what: str) -> None:
        callbacks.node(host, what)
        log.node(host, what)

    return replace(callbacks, event=event, wave=wave, result=result, node=node)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: what runs is ended, nodes that nothing was changed on are given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _event_log(path: Path) -> EventLog:
    from gpunode.cli.terminal import say
    from gpunode.edge.fleet.events import EventLog

    return EventLog(path, say)
