"""What the API of a cluster refuses, as values."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.errors import GpunodeError
from gpunode.core.model import HostOutcome

_OUTCOMES: Mapping[int, HostOutcome] = {401: "unreachable", 403: "refused", 422: "refused"}


class ApiError(GpunodeError):
    """The API's refusal: HTTP `status`, `reason` (such as AlreadyExists), those of its `causes`, Retry-After (s).

    `texts` is what the API and the causes say of themselves, such as the name of a disruption budget.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int,
        reason: str,
        causes: tuple[str, ...],
        retry_after: float,
        fix: str,
        texts: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, fix=fix)
        self.outcome = _OUTCOMES.get(status, "failed")
        self.status = status
        self.reason = reason
        self.causes = causes
        self.texts = texts
        self.retry_after = retry_after


class DeniedError(ApiError):
    """403: a right is lacking, or admission refuses it."""


class ConflictError(ApiError):
    """409: another program wrote in between, or has the field."""
