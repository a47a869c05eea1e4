"""Tables in one test: `@over(rows)` runs a check on every row, and fails once with all rows that fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def over(
    rows: Iterable[Any], *, name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A decorator: one test over all rows; a tuple is handed over as several arguments."""
    table = list(rows)

    def decorator(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            every(table, check, name=name)

        functools.update_wrapper(test, check, updated=())
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for the check's arguments
        return test

    return decorator


def every(rows: Iterable[Any], check: Callable[..., None], *, name: Callable[[Any], str] = str) -> None:
    """Run the check on each row; an AssertionError or any other exception of a row is that row's failure."""
    table, wrong = list(rows), []
    assert table, "an empty table proves nothing"
    for row in table:
        try:
            check(*row) if isinstance(row, tuple) else check(row)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{name(row)[:200]}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {len(table)} rows:\n" + "\n".join(wrong)
