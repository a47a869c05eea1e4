"""Figures of the code base as the rows of a table: `python .ci/figures.py`; `--names` says what they count.

`--check` fails when one of figures.toml has grown; `--lower` writes those that have fallen there, and those that it has
not.  `--cost SECONDS` is the CPU time of the quick unit tests, in seconds of a machine whose reference loop takes one.
With `--tests [FILE...]` the unit tests run as well (a quarter of an hour), to find those that touch nothing of the
product: they call no function of gpunode, start no program and read no file of gpunode/, roles/, playbooks/ or docs/.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(f"{ROOT}/{folder}/" for folder in ("gpunode", "roles", "playbooks", "docs", "inventory"))
SMALL = 150  # lines
LIMITS = ROOT / ".ci/figures.toml"
GENERATED = "enerated by `make docs`"
SUBJECT = 72  # characters
# CPU time is not the same twice: with other programs on the same cores the quotient was 63 to 95 for one tree (97 to
# 193 when the loop ran before and after the tests, not beside them), and cold caches add a tenth.  What differs by less
# is neither growth nor a fall.
TOLERANCE, FALL = 1.5, 0.7


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def import_lines(path: Path) -> int:
    """Lines that belong to imports at the top of a module, those for a type checker included."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    guarded = [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    found = [node for node in (*body, *guarded) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def rows(names: bool) -> Iterator[tuple[str, str]]:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/unit")]
    from test_layers import circles, import_graph

    python = tracked("gpunode/*.py")
    total, imports = sum(map(lines_of, python)), sum(map(import_lines, python))
    yield "Python in gpunode/, lines in files", f"{total / 1000:.1f}k in {len(python)} ({total / len(python):.0f} each)"
    yield "lines of imports", f"{imports} ({100 * imports / total:.1f} %)"
    graph = import_graph()
    yield "import circles, those for types counted", str(len(circles(graph)))
    importers = Counter(name for imported in graph.values() for name in imported)
    small = {}
    for name in graph:
        path = ROOT / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name.startswith("gpunode.core.") and importers[name] == 1 and lines_of(file) < SMALL:
            small[name] = next(user for user, imported in graph.items() if name in imported)
    yield f"modules of core with one importer and under {SMALL} lines", str(len(small))
    if names:
        yield from ((f"- {name}", f"imported by {user}") for name, user in sorted(small.items()))
    shell = tracked("gpunode/node/*.sh")
    yield "shell in gpunode/node/, lines in files", f"{sum(map(lines_of, shell)) / 1000:.1f}k in {len(shell)}"
    yield "pages of docs/", str(len(tracked("docs/*.md")))
    edits = tracked("tests/edits/*.case")
    yield "files of edit cases, cases", f"{len(edits)}, {len({path.stem for path in edits})}"


# ---------------------------------------------------------------- what may not grow


def reference() -> float:
    """CPU seconds of a fixed piece of work, to compare other times with: about half a second."""
    before, seen = time.thread_time(), Counter[str]()
    for number in range(900_000):
        text = f"{number % 9973}:{number % 7}"
        seen[text[:3]] += len(text.split(":"))
    return time.thread_time() - before


def written(*patterns: str) -> Iterator[str]:
    """The texts of tracked files that a person wrote."""
    for path in tracked(*patterns):
        text = path.read_text(encoding="utf-8")
        if GENERATED not in text[:1000]:
            yield text


def measured() -> dict[str, int]:
    return {
        "lines": sum(len(text.splitlines()) for text in written("gpunode/*.py", "gpunode/*.sh")),
        "words": sum(len(text.split()) for text in written("docs/*.md")),
    }


def grown(limits: dict[str, Any], found: dict[str, int]) -> list[str]:
    """What is more than its limit allows, each as a sentence."""
    allowed = {key: limits[key] * (TOLERANCE if key == "cost" else 1) for key in found if key in limits}
    fix = "make it less, or raise the figure in .ci/figures.toml by hand, with the reason behind it"
    return [
        f"{key}: {found[key]}, and {limits[key]} is the most; {fix}" for key in allowed if found[key] > allowed[key]
    ]


def lowered(text: str, found: dict[str, int]) -> str:
    """The file with what has fallen, and with what it lacks; reasons and comments stay."""
    limits = tomllib.loads(text)
    for key, figure in found.items():
        if key not in limits:
            text += f"{key} = {figure}\n"
        elif figure < limits[key] * (FALL if key == "cost" else 1):
            text = re.sub(rf"^{key} = \d+", f"{key} = {figure}", text, flags=re.M)
    return text


def long_subjects(since: str) -> list[str]:
    """Of the commits after that one, or of the newest where the history does not go back so far."""
    for scope in ([f"{since}..HEAD"], ["-1"]):
        command = ["git", "log", "--no-merges", "--format=%h %s", *scope]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not done.returncode:
            pairs = (line.split(" ", 1) for line in done.stdout.splitlines())
            return [f"{commit}: a subject of {len(text)} characters" for commit, text in pairs if len(text) > SUBJECT]
    return []


def hold(arguments: list[str]) -> int:
    """--check and --lower."""
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        return 0  # an unpacked sdist
    text = LIMITS.read_text(encoding="utf-8")
    found = measured()
    if "--cost" in arguments:
        found["cost"] = round(float(arguments[arguments.index("--cost") + 1]))
    print(", ".join(f"{figure} {key}" for key, figure in found.items()))
    problems = grown(tomllib.loads(text), found) + long_subjects(tomllib.loads(text)["subjects_since"])
    for problem in problems:
        print(problem)
    if "--lower" in arguments and (new := lowered(text, found)) != text:
        LIMITS.write_text(new, encoding="utf-8")
        print(f"{LIMITS.relative_to(ROOT)} has lower figures now: commit it")
    return 1 if problems else 0


# ---------------------------------------------------------------- tests that touch nothing of the product


class Touching:
    """A plugin of pytest: which items call a function of gpunode, start a program or read a file of the product."""

    def __init__(self) -> None:
        self.idle: list[str] = []
        self.count = 0
        self.touched = True
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.touched and (
            event in ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn")
            or (event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(PRODUCT))
        ):
            self.touched = True

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT[0]):
            self.touched = True
            sys.setprofile(None)

    def pytest_runtest_protocol(self) -> None:
        self.touched = False
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        self.count += 1
        if not self.touched:
            self.idle.append(nodeid)


def idle_tests(paths: list[str]) -> tuple[int, list[str]]:
    import pytest

    plugin = Touching()
    pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *paths], plugins=[plugin])
    return plugin.count, plugin.idle


def main(arguments: list[str]) -> int:
    if {"--check", "--lower"} & {*arguments}:
        return hold(arguments)
    names = "--names" in arguments
    for what, figure in rows(names):
        print(f"| {what} | {figure} |")
    if "--tests" in arguments:
        paths = [word for word in arguments if not word.startswith("--")]
        count, idle = idle_tests(paths or [str(ROOT / "tests/unit")])
        print(f"| unit tests of `make check`; those that touch nothing of the product | {count}; {len(idle)} |")
        for name in idle if names else ():
            print(f"| - {name} | |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
