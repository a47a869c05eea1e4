"""Every parser of what others say: any text gives a value or an error that says what to do, never another exception."""

from __future__ import annotations

import pytest
from fuzz_targets import TARGETS, Target, mutants

from gpunode.core.errors import GpunodeError


def tried(target: Target, count: int, seed: int) -> None:
    for number, text in enumerate(mutants(target.seeds(), count, seed)):
        try:
            target.run(text)
        except GpunodeError:
            continue
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}: {text[:2000]!r}")
            raise


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what)
def test_a_few_texts_give_a_value_or_an_error_to_act_on(target: Target) -> None:
    tried(target, 15, 1)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what)
def test_many_texts_give_a_value_or_an_error_to_act_on(target: Target) -> None:
    tried(target, target.inputs, 2)
