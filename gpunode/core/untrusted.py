"""The one reader of YAML, JSON and XML that gpunode did not write: of nodes, people, repositories, clusters.

What a text may cost is bounded before it is a value: its size, its depth, and what its aliases stand for.  In YAML half
a kilobyte of aliases of aliases is gigabytes as soon as somebody makes a text of it; XML's entities are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gpunode.core.errors import InputError

EXPANDED = 100_000  # values (of a long text each 10 letters) that all aliases of one text together may stand for
T = TypeVar("T")
SIZE = 512 << 20  # bytes: the largest lists of public repositories have about 300 MB when they are unpacked


def load_yaml(text: str | bytes, where: str) -> Any:
    """The plain values of the one YAML document; None for an empty text.

    InputError has path:line:column where the text is broken, and refuses aliases that stand for more than EXPANDED
    nodes.
    """
    import yaml

    with yaml_errors(where):
        check_aliases(text, where)
        return yaml.load(text, Loader=_fast())  # noqa: S506 # a safe one


def load_yaml_documents(text: str | bytes, where: str) -> list[Any]:
    """The plain values of each YAML document.  Raises InputError as `load_yaml` does."""
    import yaml

    with yaml_errors(where):
        check_aliases(text, where)
        return list(yaml.load_all(text, Loader=_fast()))


@contextmanager
def yaml_errors(where: str) -> Iterator[None]:
    """What a reader of YAML raises, as InputError."""
    import yaml

    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        spot = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(f"{where}{spot}: {error.problem or error.context}", expected="valid YAML") from error
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, OverflowError) as error:
        # what the constructors of dates, numbers and merge keys raise
        raise InputError(f"{where}: {str(error)[:200]}", expected="valid YAML") from None


def check_aliases(text: str | bytes, where: str) -> None:
    """Raise InputError for a YAML text whose aliases stand for more than EXPANDED nodes, or for themselves.

    Raises yaml.YAMLError for a text that is not YAML.
    """
    check_length(text, where)
    if (b"&" if isinstance(text, bytes) else "&") not in text:  # type: ignore[operator]
        return
    for mark in _too_much(text):
        raise InputError(
            f"{where}:{mark.line + 1}:{mark.column + 1}: its aliases (*name) stand for more than {EXPANDED} values",
            expected="a text that is about as large as what it says",
            fix="write the values out, or look who wrote this file",
        )


def _too_much(text: str | bytes) -> Iterator[Any]:
    """Where an alias stands for too much, or for something that it is part of."""
    import yaml

    sizes: dict[str, int | None] = {}  # of what an anchor names; None: it has not ended yet
    open_ones: list[tuple[str | None, int]] = []  # anchors of the collections that have begun, sizes so far
    total = 0
    for event in yaml.parse(text, Loader=_fast()):
        if isinstance(event, yaml.DocumentStartEvent):
            sizes, open_ones = {}, []
        elif isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, 1))
            if event.anchor:
                sizes[event.anchor] = None
            continue
        size = 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
            if anchor:
                sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // 10
            if event.anchor:
                sizes[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            named = sizes.get(event.anchor or "", 1)
            size = EXPANDED + 1 if named is None else named
            total += size
            if total > EXPANDED:
                yield event.start_mark
                return
        if open_ones:
            open_ones[-1] = (open_ones[-1][0], open_ones[-1][1] + size)


def load_json(text: str | bytes, where: str, **options: Any) -> Any:
    """The values of a JSON text; `options` are those of json.loads.  InputError has path:line:column."""
    check_length(text, where)
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}:{error.colno}: {error.msg}", expected="valid JSON") from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of 5,000 digits, bytes that are no UTF-8
        raise InputError(f"{where}: {str(error)[:200]}", expected="valid JSON") from None


def check_xml(text: str, where: str) -> str:
    """The text, where it declares no entities: they may stand for more than any text.  Raises InputError."""
    check_length(text, where)
    if "<!ENTITY" in text:
        raise InputError(f"{where} declares entities (<!ENTITY)", expected="XML without them")
    return text


def check_length(text: str | bytes, where: str) -> None:
    """Raise InputError for a text that nothing of ours has to read."""
    if len(text) > SIZE:
        raise InputError(f"{where} has {len(text)} bytes", expected=f"at most {SIZE}")


def structured(data: Any, kind: type[T], what: str, fix: str) -> T:
    """The inverse of dataclasses.asdict.  Raises InputError."""
    from cattrs import structure  # slow to import

    try:
        return structure(data, kind)
    except Exception as error:
        raise InputError(f"{error}: not {what}", fix=fix) from error


def _fast() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
