"""What an editor raises for an edit that would not work."""

from __future__ import annotations

from gpunode.core.model import Problem


class Refusal(Exception):
    """An edit that would not work: becomes the Problem of the Edit, and no file changes."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.problem = Problem(what=what, fix=fix)
