"""The kinds of things other than files and packages that gpunode changes, as the items that bring them about say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.core.items.item import Item, StateKind
from gpunode.core.plan.steps import STEPS  # which know all types of items


def item_types(base: type[Item] = Item) -> Iterator[type[Item]]:
    """All types of items of the steps."""
    for kind in base.__subclasses__():
        yield kind
        yield from item_types(kind)


KINDS: Mapping[str, StateKind] = {
    back.name: back for kind in item_types() if STEPS for back in kind.BACK if isinstance(back, StateKind)
}
