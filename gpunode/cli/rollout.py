"""Options of provision that say how a fleet is gone through."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import Command, Duration, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpunode.edge.fleet.driver import RunCallbacks
    from gpunode.edge.fleet.events import EventLog

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
    click.option("--deadline", type=Duration(), metavar="TIME", help="Start no further host when the run is this old."),
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
        from gpunode.cli.terminal import say
        from gpunode.edge.fleet.events import EventLog
        from gpunode.edge.signals import handling_sigterm

        deadline, path = given.pop("deadline"), given.pop("events_file")
        events = EventLog(path, say) if path else None
        try:
            with handling_sigterm():
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

    def both(one: Callable[..., None], other: Callable[..., None]) -> Callable[..., None]:
        def call(*what: Any) -> None:
            one(*what)
            other(*what)

        return call

    return replace(
        callbacks, event=both(callbacks.event, log.task), wave=both(callbacks.wave, log.wave),
        result=both(callbacks.result, log.host), node=both(callbacks.node, log.node),
    )  # fmt: skip
