"""One part of gpunode reads of another fields and codes, no sentences: who words a message better changes nothing.

A text that the code compares with or looks for is in FOREIGN, below the program that prints it, or it is a constant of
the module that writes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from test_style import ROOT

# the program that prints it, and below what the code looks for
FOREIGN = """
NVIDIA's driver and nvidia-smi
    GPU is lost | gpu is lost | GPU requires reset | gpu requires reset | requires reset | Unknown Error | Not
    Supported | Not Found | Insufficient Permissions | Function Not Found | Insufficient Size | Invalid Argument |
    No data | Argument version mismatch | In use by another client | Requested functionality has been deprecated |
    Requested functionality | Not Active | Not Started | In Progress | NVSMI LOG | gpu id | NVRM: Xid | NVRM
    version | NVIDIA UNIX | Open Kernel Module | GPU recovery action changed from | Unable to retrieve NVLink
    information as all links are inactive | GPU UUID | Device Minor | Video BIOS | GPU Firmware | is not a valid
    field to query | RmInitAdapter failed | No devices | All done | Installation has failed | Kernel source path |
    NVRM: loading NVIDIA UNIX
NVIDIA's fabric manager, nvidia-smi of Blackwell
    Detected NVL5 | NVIDIA GB
lspci
    Kernel driver in use
DCGM
    DCGM Diagnostic | DCGM GPU Diagnostic
gpu-fryer
    Throttling HW | Thermal SW | Thermal HW | All GPUs seem healthy | Some GPUs are not healthy
NCCL and its tests
    NCCL INFO | nvls channels | NCCL version | Out of bounds values
nvbandwidth
    nvbandwidth Version | Invalid value | Running end
perftest
    Number of qps | BW average
samples of CUDA
    Test PASSED
GnuPG and OpenSSL
    BEGIN PGP | PRIVATE KEY
createrepo
    package pkgid
apt
    Acquire-By-Hash: yes | Failed to fetch | GPG error | release file | not signed | no installation candidate
dnf and zypper
    public key | Operation aborted | Failed to | nothing provides | No match | Unable to find | cannot install |
    matches only | not found on medium
pacman
    failed retrieving file
rpm
    not owned
make and the linker, by DKMS
    No rule to make | No rule | undefined reference
the C library and the kernel
    Read-only file system | No space left on device | Disk quota exceeded | not permitted | permission denied |
    ermission denied | output error | resource busy | Max locked memory | Linux version
kmod
    could not insert
sudo
    must have a tty | no tty present | incorrect password | try again | is required | not found
systemd
    Failed to start | Dependency failed | Scheduled restart | This usually indicates | No entries
Ansible
    waiting for privilege escalation prompt
Python
    most recent call last
PyYAML
    stream end | unexpected end of stream | block end | block mapping start
dockerd and containerd
    Docker daemon with file | unknown flag | flag provided but not defined | cleanup warnings | Error running exec |
    failed to get sandbox image | no such image | has stopped | not running | in CONTAINER_EXITED | was killed |
    already dead | namespace path | no running task | ttrpc: closed
NVIDIA's container runtime
    invoking the NVIDIA Container Runtime Hook directly
kubectl
    Volume Claims | Variables from
Kubernetes
    Insufficient GPU Memory | failed calling webhook | does not support dry run | devices unavailable for | is not |
    not found in the list of
"""

# no sentences: KEY VALUE records of gpunode's own files, what a command is called
RECORDS = re.compile(r"reread yes|user root|gpunode [a-z]+")  # `gpunode log` heads a log
# two words or more, one behind the other
RUN = re.compile(r"[A-Za-z][\w'-]*(?:[,:;.]? [A-Za-z][\w'-]*)*[,:;.]? [A-Za-z][\w'-]+")
MAKERS = ("frozenset", "set", "tuple", "re.compile", "regex")
METHODS = frozenset(
    ["startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find", "replace"]
)


@dataclass
class Module:
    """What a file of the product looks for, and what it writes, by place."""

    looked_for: dict[str, str] = field(default_factory=dict)  # FILE:LINE → text
    written: list[str] = field(default_factory=list)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)  # names that are used for something else than a comparison


def foreign() -> Mapping[str, list[str]]:
    """FOREIGN as a mapping."""
    blocks = re.findall(r"^(\S.*)\n((?: .*\n)+)", FOREIGN, re.MULTILINE)
    return {program: " ".join(lines.split()).split(" | ") for program, lines in blocks}


def product(suffix: str) -> list[Path]:
    files = (ROOT / "gpunode").rglob(f"*{suffix}")
    return sorted(path for path in files if not path.is_relative_to(ROOT / "gpunode/lab"))


@cache
def trees() -> Mapping[str, ast.Module]:
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in product(".py")}


def runs(text: str) -> list[str]:
    """The runs of words in a text that is looked for, or in a regular expression."""
    plain = re.sub(r"\\s[+*]?", " ", re.sub(r"\\S[+*]", "X", text))
    return [run for run in RUN.findall(re.sub(r"\\[bAZdwnt]", "|", plain)) if not RECORDS.fullmatch(run)]


def operands(node: ast.AST) -> list[ast.expr]:
    """What a node compares with, or looks for."""
    if isinstance(node, ast.Compare):
        return [] if isinstance(node.ops[0], ast.Is | ast.IsNot) else [node.left, *node.comparators]
    if isinstance(node, ast.MatchValue):
        return [node.value]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "regex":
        return node.args[:1]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = node.func.value
        regular = isinstance(of, ast.Name) and of.id == "re" and node.func.attr not in ("escape", "sub")
        return node.args[:1] if regular or node.func.attr in METHODS else []
    return []


def texts(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 4) -> Iterator[tuple[ast.expr, str, str]]:
    """(node, text, name of the constant or "") of all texts that an expression may be; with … for values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node, node.value, ""
    elif isinstance(node, ast.JoinedStr):
        yield node, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values), ""
    elif isinstance(node, ast.Name) and node.id in names and depth:
        value = names[node.id]
        plain = isinstance(value, ast.Constant | ast.JoinedStr)
        yield from ((n, text, node.id if plain else name) for n, text, name in texts(value, names, depth - 1))
    else:
        inner: list[ast.expr] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            inner = node.elts
        elif isinstance(node, ast.Dict):
            inner = [key for key in node.keys if key]
        elif isinstance(node, ast.BinOp):
            inner = [node.left, node.right]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "frozenset",
            "set",
            "tuple",
            "re.compile",
            "regex",
        ):
            inner = node.args
        elif isinstance(node, ast.Starred):
            inner = [node.value]
        for one in inner:
            yield from texts(one, names, depth)


def given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment or a loop."""
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.comprehension):
        return
    pairs: list[tuple[ast.expr, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For | ast.comprehension):
        pairs = [(node.target, node.iter)]
        if isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Call):  # for key, value in TABLE.items()
            pairs = [(node.target.elts[0], node.iter.func.value)] if isinstance(node.iter.func, ast.Attribute) else []
    yield from ((to.id, value) for to, value in pairs if isinstance(to, ast.Name) and value is not None)


@cache
def python_modules() -> Mapping[str, Module]:
    found = {name: Module() for name in trees()}
    for name, tree in trees().items():
        found[name].constants = {to: value for node in tree.body for to, value in given(node)}
    for name, tree in trees().items():
        read_module(tree, name, found)
    return found


def read_module(tree: ast.Module, name: str, modules: Mapping[str, Module]) -> None:
    of, imported = modules[name], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpunode"):
            base = (node.module or "").replace(".", "/")
            source = modules.get(f"{base}.py") or modules.get(f"{base}/__init__.py") or Module()
            imported.update({a.asname or a.name: source for a in node.names if a.name in source.constants})
    constants = {to: source.constants[to] for to, source in imported.items() if to in source.constants} | of.constants
    compared: set[int] = set()
    plain: set[int] = set()  # docstrings, and pieces of f-strings
    hits: list[tuple[int, str, str]] = []
    every: list[ast.AST] = []
    todo: list[tuple[ast.AST, Mapping[str, ast.expr]]] = [(tree, constants)]
    while todo:
        node, names = todo.pop()
        every.append(node)
        if isinstance(node, ast.FunctionDef) and names is constants:
            names = constants | dict(pair for inner in ast.walk(node) for pair in given(inner))
        for operand in operands(node):
            compared |= {id(inner) for inner in ast.walk(operand)}
            for literal, text, constant in texts(operand, names):
                compared.add(id(literal))
                hits.append((getattr(node, "lineno", 0), text, constant))
        if isinstance(node, ast.Expr | ast.JoinedStr):
            plain |= {id(node.value)} if isinstance(node, ast.Expr) else {id(piece) for piece in node.values}
        todo += [(child, names) for child in ast.iter_child_nodes(node)]
    for node in every:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in compared:
            of.loaded.add(node.id)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in plain and id(node) not in compared:
            of.written += [text for _, text, _ in texts(node, {})]
    for line, text, constant in hits:
        owner = imported.get(constant, of)
        if constant not in owner.loaded:
            of.looked_for.update({f"{name}:{line}: {run}": run for run in runs(text)})


# in a line of shell: an argument of grep, a pattern of case, of [ ] and of ${ }
SHELL_PATTERNS = re.compile(
    r"""\bgrep\b(?P<a>(?:'[^']*'|"[^"]*"|[^|&;'"])*)"""
    r"""|^\s*\(?(?P<b>(?:'[^']*'|[^\s'()])+(?: \| (?:'[^']*'|[^\s'()])+)*)\)\s"""
    r"""| in (?P<c>\*?'[^']*'\*?)\)| !?==? (?P<d>'[^']*') \]|\$\{\w+[#%]+(?P<e>[^}]*)\}"""
)
QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


@cache
def shell_modules() -> Mapping[str, Module]:
    found = {}
    for path in product(".sh"):
        name = str(path.relative_to(ROOT))
        of = found[name] = Module()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = re.sub(r"(?:^|\s)#\s.*", "", line)
            for hit in SHELL_PATTERNS.finditer(text):
                pattern = re.sub(r"\$\{?\w+\}?", "|", " ".join(filter(None, hit.groups())))
                for quoted in QUOTED.findall(pattern):
                    of.looked_for.update({f"{name}:{number}: {run}": run for run in runs("".join(quoted))})
            of.written += ["".join(quoted) for quoted in QUOTED.findall(SHELL_PATTERNS.sub("", text))]
    return found


@cache
def everything() -> Mapping[str, Module]:
    return {**python_modules(), **shell_modules()}


def test_the_code_looks_for_no_sentence_that_another_part_of_it_wrote() -> None:
    known = {run for runs_of in foreign().values() for run in runs_of}
    found = {place: run for module in everything().values() for place, run in module.looked_for.items()}
    assert [place for place, run in found.items() if run not in known] == []
    assert known - {*found.values()} == set(), "nothing looks for these any more"


def says(text: str, run: str) -> bool:
    """Whether a text of gpunode has these words inside, and not in «…»; two small words are in many."""
    if run not in text or "\\" in text or (len(run.split()) < 3 and run.islower()):
        return False
    return re.search(rf"[\w,;:)…] {re.escape(run)}", re.sub("«[^»]*»|`[^`]*`", "", text)) is not None


def test_what_is_looked_for_is_written_by_no_other_part_of_gpunode() -> None:
    wanted = [run for runs_of in foreign().values() for run in runs_of]
    some = re.compile("|".join(map(re.escape, wanted)))
    written = [(name, text) for name, module in everything().items() for text in module.written if some.search(text)]
    assert [(name, text, run) for name, text in written for run in wanted if says(text, run)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('if "is no folder" in x: pass', ["is no folder"]),
        ('WHY = "is no folder"\nif WHY in x: pass', ["is no folder"]),
        ('WHY = "is no folder"\nif WHY in x: print(WHY)', []),
        ('SOME = ("a b", "is no folder")\ndef f(x):\n    any(one in x for one in SOME)', ["is no folder"]),
        ('T = {"is no folder": 1}\nfor word, y in T.items():\n    x.startswith(word)', ["is no folder"]),
        ('import re\nR = re.compile(r"is\\s+no folder: (.*)")', ["is no folder"]),
        ('from gpunode.core.late import regex\nR = regex(r"is no folder")', ["is no folder"]),
        ('f"{x} is no folder".partition(f"{x} is no ")', ["is no"]),
        ('print("is no folder")\nx == "missing"', []),
    ],
)
def test_what_counts_as_a_sentence_that_is_looked_for(code: str, found: list[str]) -> None:
    tree = ast.parse(code)
    one = Module(constants={to: value for node in tree.body for to, value in given(node)})
    read_module(tree, "some.py", {"some.py": one})
    assert [*one.looked_for.values()] == found
