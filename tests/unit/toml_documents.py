"""Valid TOML as people write it: every way to write tables, keys, values, spaces, comments and line ends."""

from __future__ import annotations

import itertools
from random import Random

SCALARS = [
    "1", "+17", "0xDEAD_beef", "0o7", "1_000", "1.5", "-0.0", "6.6e-3", "inf", "nan", "true", "false",
    '"s"', r'"\u0041\n\" # no"', r"'C:\x'", '""', "''", "'[a]'", '"""\n[not]\na = 1 \\\n  x"""', "'''\n# no\n'''",
    '""""quoted""""', "1979-05-27T07:32:00Z", "1979-05-27 07:32:00", "07:32:00.5", "1979-05-27",
    "[]", "[ ]", "[\n]", "[ 1, 2 ]", '["a", "b"]', '[\n  "a", # c\n  "b"\n]', '[\n  "a",\n  # [x]\n  "b",\n]',
    '[ "a"\n, "b" ]', "[[1], ['x']]", "[{k = 1}, { }]",
    "{}", "{ k = 1 }", '{k.l = 1, "m n" = [1, 2]}', "{ k = { l = 'x' }, a = [\n1,\n2 ] }",
    "{k={l=[{m=1}]},'n'={},o.p=1.5}",
]  # fmt: skip
KEYS = ["a", "b", "c", "io-x", "1", '"a b"', "'io.x.y'", r'"\u0062x"', '""', r'"e\"f"', '"ключ"']
SPACES = ["", " ", "  ", "\t"]
COMMENTS = ["", "", "", "# c", " # [x]", "  # a = 1 \"'"]
LOOSE = ["", "  ", "# about what follows", "\t# k = 1"]


def document(random: Random) -> str:
    """The text of a valid document."""
    used, body = _body(random, "")
    lines = [*_loose(random), *body]
    for name in _some(random, [key for key in KEYS if key not in used], 3):
        lines += _table(random, name, random.choice(SPACES))
    end = random.choice(["\n", "\n", "\r\n"])
    return end.join("\n".join(lines).split("\n")) + random.choice(["", end, end, end + end, f"{end}# the end"])


def _some(random: Random, names: list[str], most: int) -> list[str]:
    return random.sample(names, random.randint(0, min(most, len(names))))


def _loose(random: Random) -> list[str]:
    return [random.choice(LOOSE) for _ in range(random.choice([0, 0, 0, 1, 1, 2]))]


def _body(random: Random, indent: str) -> tuple[list[str], list[str]]:
    """Keys, and lines that give them values; some are dotted."""
    keys, lines = _some(random, KEYS, 3), []
    for key in keys:
        dotted = random.random() < 0.3
        dot = random.choice([".", ".", " . "])
        for name in [f"{key}{dot}{other}" for other in random.sample(KEYS, random.randint(1, 2))] if dotted else [key]:
            before, behind = random.choice(SPACES), random.choice(SPACES)
            lines.append(f"{indent}{name}{before}={behind}{random.choice(SCALARS)}{random.choice(COMMENTS)}")
            lines += _loose(random)
    return keys, lines


def _table(random: Random, path: str, indent: str, depth: int = 0, *, listed: bool = False) -> list[str]:
    """A table, or an array of them, or none but its sub tables; some of these may come first."""
    kind = random.choice(["table", "table", "table", "implied", "array"])
    used, body = _body(random, indent + random.choice(["", "  "]))
    if kind == "implied":
        used, body = [], []
    dot, space = random.choice([".", ".", " . "]), random.choice(["", "", " "])
    names = _some(random, [key for key in KEYS if key not in used], 2) if depth < 4 else []
    below, step = listed or kind == "array", random.choice(["", "", "  "])
    inner = [_table(random, f"{path}{dot}{name}", f"{indent}{step}", depth + 1, listed=below) for name in names]
    left, right = ("[[", "]]") if kind == "array" else ("[", "]")
    head = [] if kind == "implied" else [f"{indent}{left}{space}{path}{space}{right}{random.choice(COMMENTS)}", *body]
    late = kind == "table" and not listed and random.random() < 0.3  # tomllib refuses that within arrays
    inner.insert(random.randint(0, len(inner)) if late else 0, head)
    return [*_loose(random), *itertools.chain.from_iterable(inner)]
