"""No pattern of the product takes more than its share of a long text that is made to be its worst.

A node, a log or a repository may hold any text.  Each pattern of gpunode, compiled or written where it is used,
searches texts of repeated beginnings of what it would match; four times the text may take a little more than four times
as long, never sixteen times.  (The doctor's patterns never see more than two thousand characters at once.)
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

import gpunode
from gpunode.core import mask as masks
from gpunode.core.doctor import scan
from gpunode.core.late import regex
from gpunode.core.mask import mask, mask_quoted
from gpunode.edge.doctor import load_faults

try:
    from re import _constants as sre_constants
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants
    import sre_parse

SHORT, LONG = 4_000, 16_000  # characters
NOTHING = 0.004  # seconds that are not worth a look
MOST = 9  # times as long for four times the text


def example(parsed: Iterable[tuple[object, object]], repeats: int) -> str:
    """A text that begins as what the pattern matches: first alternatives, each repeat as often as `repeats` at most."""
    found = ""
    for operation, value in parsed:
        if operation in (sre_constants.LITERAL, sre_constants.NOT_LITERAL):
            found += chr(value) if operation is sre_constants.LITERAL else "x"
        elif operation is sre_constants.ANY:
            found += "x"
        elif operation is sre_constants.IN:
            found += member(value)
        elif operation is sre_constants.BRANCH:
            found += example(value[1][0], repeats)
        elif operation is sre_constants.SUBPATTERN:
            found += example(value[-1], repeats)
        elif operation in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT):
            low, high, inner = value
            found += example(inner, repeats) * max(low, min(repeats, high))
    return found


def member(choices: Iterable[tuple[object, object]]) -> str:
    for operation, value in choices:
        if operation is sre_constants.NEGATE:
            return "x"
        if operation is sre_constants.LITERAL:
            return chr(value)
        if operation is sre_constants.RANGE:
            return chr(value[0])
        if operation is sre_constants.CATEGORY:
            return {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "x"}.get(str(value), "a")
    return "a"


OWN = {
    "gpunode.kube.core.selector._COMMA": "a person's own selector, on the command line",
}
PATTERNS = (re.Pattern, type(regex("")))
SCANS = {"search", "sub", "subn", "finditer", "findall", "split"}
HOW = {"search": 2, "match": 2, "fullmatch": 2, "finditer": 2, "findall": 2, "split": 3, "sub": 4, "subn": 4}  # flags
ROOT = Path(gpunode.__file__).parent


def patterns() -> Iterator[tuple[str, re.Pattern[str], bool]]:
    """Name, pattern, and whether it is searched anywhere in a text; others are compared with its beginning, once."""
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT.parent).with_suffix("")
        if place.parts[1] in ("lab", "collection") or place.name.startswith("docs_"):  # they read our own
            continue
        source = path.read_text()
        if "re.compile(" in source or "regex(" in source:
            for name, value in vars(importlib.import_module(".".join(place.parts).removesuffix(".__init__"))).items():
                if isinstance(value, PATTERNS) and f"{'.'.join(place.parts)}.{name}" not in OWN:
                    scans = any(re.search(rf"\b{name}\.{how}\b", source) for how in SCANS)
                    yield f"{place}: {name}", as_text(value.pattern, value.flags), scans
        for line, pattern, scans in written_where_used(ast.parse(source)):
            yield f"{place}:{line}", pattern, scans


def written_where_used(module: ast.Module) -> Iterator[tuple[int, re.Pattern[str], bool]]:
    """Line, pattern, and whether it is searched."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=how), args=[first, *rest]) if how in HOW:
                given = [word.value for word in node.keywords if word.arg == "flags"] or rest[HOW[how] - 1 :]
                text = literal(first)
                if text is not None:
                    flags = eval(ast.unparse(given[0]), {"re": re}) if given else 0
                    yield node.lineno, as_text(text, flags), how in SCANS


def literal(node: ast.expr) -> str | bytes | None:
    """Its text, where what is put into it is an x; None where it is a variable."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | bytes) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return None


def as_text(pattern: str | bytes, flags: int) -> re.Pattern[str]:
    return re.compile(pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern, flags)


def fillings(pattern: re.Pattern[str]) -> Iterator[str]:
    parsed = sre_parse.parse(pattern.pattern, pattern.flags & ~re.UNICODE.value)
    if r"\s" in pattern.pattern:
        yield "\n"
    for repeats in (1, 2):
        text = example(parsed, repeats)
        if text:
            yield text
            yield text[: max(1, len(text) // 2)]
            yield from {text[0], text[-1]}


def seconds(run: Callable[[str], object], text: str) -> float:
    """The shortest of three."""
    best = 9e9
    for _ in range(3):
        started = time.process_time()
        run(text)
        best = min(best, time.process_time() - started)
        if best > 1:
            break
    return best


def slow(named: Iterable[tuple[str, re.Pattern[str], bool]]) -> list[str]:
    found = []
    for name, pattern, scans in named:
        run = partial(pattern.sub, "") if scans else pattern.match
        for filling in dict.fromkeys(fillings(pattern)):
            short, long = ((filling * (length // len(filling) + 1))[:length] for length in (SHORT, LONG))
            took = seconds(run, long)
            if took > NOTHING and took > MOST * max(seconds(run, short), NOTHING / MOST):
                found.append(f"{name}: {filling[:60]!r} takes {took:.3f} s")
                break
    return found


@pytest.mark.slow
def test_patterns_take_time_as_long_as_the_text() -> None:
    assert slow(patterns()) == []


def pumps(parsed: Iterable[tuple[object, object]], before: str = "") -> Iterator[tuple[str, str]]:
    """Of each repeat without an end, and of the whole pattern: a text that leads to it, and what it repeats."""
    for operation, value in parsed:
        inner: list[Iterable[tuple[object, object]]] = []
        if operation in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT):
            inner = [value[2]]
            if value[1] > 5:
                yield from ((before, example(value[2], repeats)) for repeats in (1, 2))
        elif operation is sre_constants.BRANCH:
            inner = value[1]
        elif operation is sre_constants.SUBPATTERN:
            inner = [value[-1]]
        elif operation in (sre_constants.ASSERT, sre_constants.ASSERT_NOT):
            inner = [value[1]]
        for part in inner:
            yield from pumps(part, before)
        before += example([(operation, value)], 1)
    yield "", before


def slow_fillings(pattern: re.Pattern[str], hide: Callable[[str], object]) -> list[str]:
    """The texts made of the pattern's own grammar that take more than their share."""
    found = []
    for before, part in dict.fromkeys(pumps(sre_parse.parse(pattern.pattern, pattern.flags & ~re.UNICODE.value))):
        for filling in (part, f"{part}\n", f"{part} ") if part else ():
            short, long = ((before + filling * length)[:length] + "=" for length in (SHORT // 4, LONG // 4))
            if seconds(hide, long) > max(NOTHING, MOST * seconds(hide, short)):
                found.append(f"{before[-40:]!r} and {filling[:40]!r}")
    return found


MASKS = [name for name, one in vars(masks).items() if isinstance(one, PATTERNS)]


def test_patterns_that_are_compiled_late_are_judged_with_the_others() -> None:
    assert {f"gpunode/core/mask: {name}" for name in MASKS} <= {name for name, _, _ in patterns()}
    assert len(MASKS) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_linear_over_what_their_own_patterns_repeat(name: str) -> None:
    assert slow_fillings(getattr(masks, name), mask_quoted) == []


def test_a_repeat_without_a_bound_is_found_by_its_own_grammar() -> None:
    old = re.compile(r"(?:[a-z_]*_)?auth(?:_[a-z]+)*=")
    assert slow_fillings(old, partial(old.sub, ""))


def test_a_pattern_that_tries_everything_twice_is_found() -> None:
    assert slow([("the old mask", re.compile(r"(?:[a-z_]*_)?auth(?:_[a-z]+)*="), True)])


@pytest.mark.parametrize("hide", [mask, mask_quoted])
@pytest.mark.parametrize("separator", ["_", "-", ".", "", "A", " "], ids=repr)
@pytest.mark.parametrize(
    "word", ["auth", "token", "api_key", "password", "secret", "credentials", "Authorization", "x"]
)
def test_names_of_secrets_without_an_end_are_hidden_in_linear_time(
    word: str, separator: str, hide: Callable[[str], str]
) -> None:
    """64 KB of `auth_` in one file of a node stopped the plan of a fleet; mask has to read every file of a node."""
    for end in ("", "=", ' "'):
        filling = f"{word}{separator}"
        short, long = ((filling * (length // len(filling) + 1))[:length] + end for length in (SHORT, LONG))
        took = seconds(hide, long)
        assert took < NOTHING or took <= MOST * max(seconds(hide, short), NOTHING / MOST), f"{end!r}: {took:.3f} s"


def test_a_line_full_of_codes_costs_the_doctor_not_much_more_than_ordinary_lines() -> None:
    faults, length = load_faults(), 200_000
    codes, ordinary = (
        (line * length)[:length]
        for line in ("NVRM: Xid (PCI:0000:01:00): 79, ", "Nov 22 01:02:03 gpu1 kernel: NVRM: API mismatch: nvidia\n")
    )

    def seconds(text: str) -> float:
        begun = time.process_time()
        scan(faults, "log", [text])
        return time.process_time() - begun

    assert min(seconds(codes) for _ in range(3)) < 30 * min(seconds(ordinary) for _ in range(3))
