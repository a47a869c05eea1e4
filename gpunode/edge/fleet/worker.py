"""Who takes nodes of a cluster into work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpunode.core.late import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Who takes nodes: a controller and its run; `take_over`: also nodes that another controller has in work.

    `stage` is called with a host and what happens to its node, `cancelled` is set when all is to end.
    """

    controller: str = ""
    run: str = ""
    take_over: bool = False
    stage: Callable[[str, str], None] = lambda host, what: None
    cancelled: threading.Event = field(default_factory=threading.Event)
