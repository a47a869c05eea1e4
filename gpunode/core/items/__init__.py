"""What a node should have and what it has, in one shape: {Key: value}.

Plan, check mode and verify are their difference.

A key is (role, option, name): `("driver", "packages", "nvidia-open-580")`.  The role and option say which step mends
a difference; the name says which thing differs.  A value is a short text that a person can compare.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from gpunode.core.items.actual import actual
from gpunode.core.items.driver import NOUVEAU_CONF, builder_problems, wanted_driver
from gpunode.core.items.engine import DAEMONLESS, ENGINES, manages, wanted_runtimes
from gpunode.core.items.image import without_loading
from gpunode.core.items.sharing import wanted_sharing
from gpunode.core.items.smoke import smoke_request
from gpunode.core.items.software import wanted_cuda, wanted_fabric, wanted_sources
from gpunode.core.items.toolkit import wanted_config, wanted_toolkit
from gpunode.core.items.values import ABSENT, BROKEN_OFF, FRESH, NOT_HELD, Key, Want, Wanted
from gpunode.core.model import NodeFacts, Solution
from gpunode.core.spec import Spec

__all__ = [
    "ABSENT",
    "DAEMONLESS",
    "ENGINES",
    "FRESH",
    "NOUVEAU_CONF",
    "Key",
    "Want",
    "Wanted",
    "actual",
    "differs",
    "manages",
    "wanted",
]


def wanted(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> Wanted:
    """The state that `spec` and its `solution` ask of this node; values only, nothing is compared yet."""
    items: dict[Key, Want] = dict(wanted_sources(facts, solution, templates))
    if solution.driver:
        items |= dict(wanted_driver(facts, spec.driver, solution.driver, templates))
    if solution.fabric:
        items |= dict(wanted_fabric(solution.fabric, templates))
    if solution.cuda:
        items |= dict(wanted_cuda(solution.cuda, templates))
    config = wanted_config(facts, spec)
    items |= config.items
    if spec.image.load:  # what is to be cut must be there
        items |= dict(wanted_sharing(facts, spec, solution, templates))
    engines = Wanted(items={}, edits={})
    if solution.toolkit:
        items |= dict(wanted_toolkit(facts, solution))
        engines = wanted_runtimes(facts, spec, solution, templates)
        items |= engines.items
    if solution.driver and not spec.image.load:
        items = without_loading(items, solution.driver, smoke_request(facts, spec, solution), templates)
    return Wanted(
        items=items,
        edits={**config.edits, **engines.edits},
        problems=(
            *(builder_problems(facts, solution.driver) if solution.driver else ()),
            *config.problems,
            *engines.problems,
        ),
    )


def differs(item: Want, value: str) -> bool:
    """Whether the node's value is not the wanted one; a wanted package version may end in `*`."""
    if value in ("", ABSENT) or value.endswith((NOT_HELD, BROKEN_OFF)):
        return value != item.value
    return not fnmatch.fnmatchcase(value, item.value)
