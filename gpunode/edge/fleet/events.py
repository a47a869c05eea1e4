"""What happens in a run as JSON lines, for webhooks and dashboards that users have (docs/fleet.md)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpunode.core.errors import Exit
from gpunode.core.model import HostResult
from gpunode.core.printable import json_text
from gpunode.edge.ansible.runner import Event
from gpunode.edge.state import writing_to

FORMAT = 1


class EventLog:
    """A file (or /dev/fd/N) that gets one JSON object a line, each written at once; usable from threads."""

    def __init__(self, path: Path, notice: Callable[[str], None] = lambda text: None) -> None:
        with writing_to(path, "choose another file for events"):
            self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._broken, self._notice = False, notice

    def wave(self, pool: str, wave: int, what: str) -> None:
        self._write("wave", pool=pool, wave=wave + 1, what=what)

    def task(self, event: Event) -> None:
        data = {key: value for key, value in asdict(event).items() if key not in ("kind", "result")}
        self._write("task", outcome=event.kind, **data)

    def node(self, host: str, what: str) -> None:
        self._write("node", host=host, what=what)

    def host(self, result: HostResult) -> None:
        failed = [check.id for check in result.checks if check.status == "failed"]
        self._write(
            "host",
            host=result.host,
            exit=int(Exit.of(result.outcome)),
            message=result.message,
            fix=result.fix,
            changed=[one.text for one in result.changed],
            failed_checks=failed,
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was reported
            self._file.close()

    def _write(self, type_: str, **data: Any) -> None:
        line = {"format": FORMAT, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "type": type_, **data}
        text = json_text(line, default=str) + "\n"
        with self._lock:
            if self._broken:
                return
            try:
                self._file.write(text)
            except OSError as error:  # a full disk, a reader that went away: the run goes on
                self._broken = True
                self._notice(f"no more events to {self._file.name}: {error.strerror}")
