"""The layers of docs/design.md, read off the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from rows import over

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpunode"
COLLECTION = PACKAGE / "collection/ansible_collections/gpunode/node"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The standard library's modules that read no file, clock, environment or network.
PURE = words(
    "__future__ base64 bisect binascii calendar codecs collections configparser contextlib copy dataclasses decimal "
    "difflib enum fnmatch functools hashlib html importlib io ipaddress itertools json math operator posixpath re "
    "shlex statistics string struct textwrap threading tomllib types typing unicodedata urllib.parse xml.etree xml.sax "
    "zlib"
)
TEXT_LIBRARIES = words("ahocorasick cattrs jinja2 tomli tomlkit yaml")
IMPURE_BUILTINS = words("open print input exec eval breakpoint __import__")
# What a command's start may cost nothing: these are imported inside the commands.
HEAVY = words(
    "ansible ansible_runner asyncio cattrs concurrent.futures jinja2 kubernetes paramiko pynvml rich sqlite3 tomlkit "
    "urllib3 yaml"
)


# The only ways into gpunode.kube: names for users, the images of a bundle, draining in a rollout.
DOORS = ("gpunode/__init__.py", "gpunode/edge/bundle/cluster.py", "gpunode/edge/fleet/draining.py")


def modules(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (PACKAGE / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports, without those that only a type checker sees."""
    found: list[str] = []
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            todo += ast.iter_child_nodes(node)
    return tuple(found)


def within(name: str, allowed: frozenset[str] | set[str]) -> bool:
    return any(name == a or name.startswith(f"{a}.") for a in allowed)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@over(modules("core", "kube/core"), name=relative)
def test_core_imports_only_itself_pure_standard_modules_and_text_libraries(path: Path) -> None:
    kube = {"gpunode.kube.core"} if PACKAGE / "kube" in path.parents else set()
    allowed = PURE | TEXT_LIBRARIES | {"gpunode.core"} | kube
    assert [name for name in imports(path) if not within(name, allowed)] == []


@over(modules("core", "kube/core"), name=relative)
def test_core_calls_nothing_that_touches_the_world(path: Path) -> None:
    called = {
        node.func.id for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    compiles = {"exec"} if path.name == "late.py" else set()  # an __init__, of the names of a class's fields
    assert called & IMPURE_BUILTINS == compiles


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("ansible_runner", {"gpunode/edge/ansible/runner.py"}),
        ("pynvml", {"gpunode/edge/host/nvml.py"}),
        ("kubernetes", {"gpunode/kube/edge/kubeconfig.py"}),
        ("urllib3", {"gpunode/kube/edge/client.py"}),
        ("gpunode.lab", {"gpunode/cli", "gpunode/lab"}),
        ("gpunode.cli", {"gpunode/cli", "gpunode/kube/cli", "gpunode/__main__.py"}),
        ("gpunode.kube", {"gpunode/kube", *DOORS}),
        ("click", {"gpunode/cli", "gpunode/kube/cli"}),
    ],
)
def test_a_library_is_used_only_at_home(library: str, homes: set[str]) -> None:
    users = {relative(p) for p in modules(".") if any(within(name, {library}) for name in imports(p))}
    assert {user for user in users if not any(user == h or user.startswith(f"{h}/") for h in homes)} == set()


def test_clusters_are_loaded_only_where_there_is_one() -> None:
    """Every module outside of gpunode.kube, the doors too, does without it until a function is called."""
    outside = [
        module_name(p) for p in modules(".") if not {PACKAGE / "kube", COLLECTION, PACKAGE / "lab"} & {*p.parents}
    ]
    names = [name for name in outside if name != "gpunode.__main__"]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert [name for name in ran.stdout.split() if within(name, {"gpunode.kube", "kubernetes"})] == []


def test_the_edge_is_not_imported_by_the_collections_documentation_modules() -> None:
    docs_only = sorted((COLLECTION / "plugins/modules").glob("*.py"))
    assert [p.name for p in docs_only if any(name.startswith("gpunode") for name in imports(p))] == []


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    script = "import gpunode, gpunode.cli.main, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & HEAVY == set()
    assert "gpunode.cli.main" in loaded


# A message may send the user to the lab (`gpunode lab up`, `--lab`); nothing else in the product may know of it.
LAB_WORD = re.compile(r"(?<!--)(?<!gpunode )\blab\b|stand-in", re.IGNORECASE)


def product_files() -> list[Path]:
    folders = [PACKAGE / f for f in ("core", "edge", "kube", "node", "knowledge", "templates")]
    folders += [COLLECTION / f for f in ("plugins", "roles", "playbooks")]
    return sorted(p for f in folders for p in f.rglob("*") if p.is_file() and p.suffix != ".pyc")


@over(product_files(), name=relative)
def test_the_product_does_not_know_the_lab(path: Path) -> None:
    lines = path.read_text(errors="replace").splitlines()
    assert [f"{n}: {line.strip()}" for n, line in enumerate(lines, 1) if LAB_WORD.search(line)] == []


@over(sorted({path.name for path in (ROOT / "gpunode/node").rglob("*.sh")} - {"base.sh"}))
def test_no_function_stands_twice_in_a_node_script_with_what_is_put_before_it(name: str) -> None:
    from gpunode.node import script

    names = re.findall(r"^([a-z_]+)\(\)", script(name), re.MULTILINE)
    assert sorted(set(names)) == sorted(names)


def test_the_runtime_command_does_with_what_a_node_may_have() -> None:
    """`gpunode runtime` runs on nodes with click, PyYAML and Jinja alone (tests/lab/daemon_node.py)."""
    code = "import sys, gpunode.edge.host.cdi, gpunode.edge.host.runtimes, gpunode.cli.runtime; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"ansible", "ansible_runner", "cattrs", "paramiko", "rich"} == set()


def test_a_run_with_nothing_to_do_loads_neither_acceptance_nor_what_reads_repositories() -> None:
    code = "import sys, gpunode.edge.desired, gpunode.edge.fleet.provision; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"gpunode.edge.accept", "gpunode.core.accept", "gpunode.edge.bundle", "ssl", "http"} == set()


def without_imports(path: Path) -> str:
    """The text of a module; a name that is imported is not used by that."""
    lines = path.read_text().splitlines()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for number in range(node.lineno, (node.end_lineno or 0) + 1):
                lines[number - 1] = ""
    return "\n".join(lines)


@cache
def used_names() -> Counter[str]:
    return Counter(name for path in modules(".") for name in re.findall(r"\w+", without_imports(path)))


@over(modules("core", "kube/core"), name=relative)
def test_every_function_and_class_of_core_is_used_by_the_product(path: Path) -> None:
    kinds = (ast.FunctionDef, ast.ClassDef)
    named = [node.name for node in ast.walk(tree(path)) if isinstance(node, kinds) and not node.name.startswith("__")]
    unused = [name for name in named if used_names()[name] < 2]
    assert unused == [], f"{relative(path)}: nothing calls these; health_checks in checks/health.py calls checks"


def test_no_public_class_of_core_has_the_name_of_another() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules("core", "kube/core"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(relative(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


# ---------------------------------------------------------------- circles, and the order inside core

# A part of core imports what is named before it, or beside it in the same line.
ORDER = (
    "engines errors grammar grouped late meant model plain printable words",
    "content mask numbers openpgp remote untrusted validation yaml_text",
    "diff knowledge",
    "spec",
    "rollout secrets sharing solve",
    "facts",
    "edits",
    "items",
    "checks plan",
    "accept bundle doctor report selftest undo",
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def import_graph() -> dict[str, set[str]]:
    """Module → the modules of gpunode that it imports anywhere, for a type checker included."""
    paths = {module_name(p): p for p in modules(".") if COLLECTION not in p.parents}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if alias.name == "__version__":
                        continue
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in paths else node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[name] = (found & set(paths)) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other: a module is in a circle when it is among what it reaches."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(graph[start])
        while left:
            if (one := left.pop()) not in seen:
                seen.add(one)
                left += graph[one]
        return seen

    reach = {name: reached(name) for name in graph}
    inside = {name for name in graph if name in reach[name]}
    found = {frozenset(other for other in inside if other in reach[name] and name in reach[other]) for name in inside}
    return sorted(sorted(circle) for circle in found)


def test_no_modules_import_each_other_not_even_for_types() -> None:
    assert circles(import_graph()) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_the_parts_of_core_import_in_one_direction() -> None:
    place = {part: number for number, line in enumerate(ORDER) for part in line.split()}
    wrong = []
    for name, imported in import_graph().items():
        for other in imported:
            here, there = (full.removeprefix("gpunode.core.").split(".")[0] for full in (name, other))
            core = name.startswith("gpunode.core.") and other.startswith("gpunode.core.")
            if core and here != there and place[there] > place[here]:
                wrong.append(f"{name} imports {other}")
    assert wrong == []
