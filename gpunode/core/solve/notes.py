"""What solve() writes down while it decides: reasons and problems, in order, each once."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpunode.core.model import (
    CudaChoice,
    DriverChoice,
    FabricChoice,
    Problem,
    Reason,
    Repository,
    Solution,
    ToolkitChoice,
)


@dataclass(kw_only=True)
class Notes:
    """The only thing here that changes: a list that grows during one solve()."""

    reasons: dict[Reason, None] = field(default_factory=dict)
    problems: dict[Problem, None] = field(default_factory=dict)

    def because(self, what: str, why: str, source: str) -> None:
        self.reasons[Reason(what=what, why=why, source=source)] = None

    def refuse(self, what: str, fix: str) -> None:
        self.problems[Problem(what=what, fix=fix)] = None

    def solution(
        self,
        *,
        driver: DriverChoice | None = None,
        fabric: FabricChoice | None = None,
        cuda: CudaChoice | None = None,
        toolkit: ToolkitChoice | None = None,
        repositories: tuple[Repository, ...] = (),
    ) -> Solution:
        return Solution(
            driver=driver,
            fabric=fabric,
            cuda=cuda,
            toolkit=toolkit,
            repositories=repositories,
            reasons=tuple(self.reasons),
            problems=tuple(self.problems),
        )
