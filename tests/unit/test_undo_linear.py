"""What a long journal costs grows as it does: no plan of an undo looks through all records for each thing."""

from __future__ import annotations

import gc
import time

import pytest
from journal_shapes import SHAPES, Shape, work

SHORT, LONG = 3_000, 12_000  # records: more than fit into a cache, both
NOTHING = 0.05  # seconds that are not worth a look
MOST = 9  # times as long for four times the records: sixteen times, where each is held against all


def seconds(text: str) -> float:
    """Of this thread's processor time; the best of two."""
    found = []
    for _ in range(2):
        gc.collect()
        began = time.thread_time()
        work(text)
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_four_times_the_records_take_four_times_as_long(shape: Shape) -> None:
    much = seconds(shape(LONG))
    assert much < NOTHING or much < MOST * seconds(shape(SHORT))
