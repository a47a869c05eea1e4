"""Which functions of a shell program set variables that others rely on.  POSIX shell has no local variables.

The rules, for the program as a whole (all of its parts in one text):

* A variable that a function sets in its own shell, or that functions which it calls there set, is private to it, unless
  the comment above the function declares it: `# sets: name other`.  A caller that reads a variable of that name, in the
  shell of the call or in one that it starts, relies on what is not its own.  That holds for a function that calls
  itself, too.
* A variable that a function reads and never sets comes from outside: from the environment, from the main program, or
  from a function that declares it.
* A name that a function declares, that the main program sets and a function reads, or that a trap reads, is shared.  A
  function that sets it in its own shell declares that as well.
* What sets variables whose names nobody can see (eval, a file that is read with `.`, export "$name=…") is refused where
  it could leak; `# sets: NVIDIA_*` declares names by a pattern.

Subshells keep what is set in them: ( … ), $( … ), the commands of a pipeline and those in the background, and a
function whose body is ( … ).  Commands of a trap run at any time: what they read is shared.  A name of a function that
is put together ("${manager}_$1") calls all that fit; `# calls: *_$1` narrows that to the words of each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from shell_syntax import For, Function, Group, Node, Read, Shell, Simple, SyntaxProblem, Word, parse, words_of

MAIN = "main program"
ANY = "*"
_SPECIAL_BUILTINS = frozenset(": . eval exec export readonly set shift times trap unset break continue return".split())


@dataclass(frozen=True, order=True)
class Finding:
    function: str
    variable: str
    what: str

    def __str__(self) -> str:
        return f"{self.function}: {self.variable}: {self.what}"


@dataclass(frozen=True)
class Call:
    function: str
    shell: int


@dataclass
class Scope:
    """A function: what it sets, reads and calls, each with the shell where it does so.  Shell 0 is the caller's own."""

    name: str
    declared: frozenset[str] = frozenset()
    dispatches: tuple[str, ...] = ()  # patterns of `# calls:`
    parents: list[int] = field(default_factory=lambda: [-1])
    sets: set[tuple[str, int]] = field(default_factory=set)
    reads: set[tuple[str, int]] = field(default_factory=set)
    calls: set[Call] = field(default_factory=set)
    trapped: set[str] = field(default_factory=set)  # read by the commands of a trap
    runs_arguments: bool = False
    sources: set[int] = field(default_factory=set)  # shells that read a file with `.`

    def declares(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.declared)

    def sees(self, name: str, shell: int, other: int) -> bool:
        """Whether a read in `shell` gets what `other` has: it starts from there, and nothing between sets the name."""
        while shell not in (other, -1):
            if (name, shell) in self.sets:
                return False
            shell = self.parents[shell]
        return shell == other

    def leaks(self) -> set[str]:
        return {name for name, shell in self.sets if shell == 0}

    def own(self, name: str) -> bool:
        return any(n == name for n, _ in self.sets)


def findings(text: str) -> list[Finding]:
    """What breaks the rules in a program.  Raises SyntaxProblem where it cannot be read."""
    return sorted(set(_Program(text).findings()))


class _Program:
    def __init__(self, text: str) -> None:
        tree = parse(text)
        self.functions = {node.name: node for node in _functions(tree)}
        self.unseen: list[Finding] = []
        self.scopes = {MAIN: Scope(MAIN)}
        for name, function in self.functions.items():
            about = [line.partition(":")[::2] for line in function.about]
            self.scopes[name] = Scope(
                name,
                declared=frozenset(w for key, value in about if key == "sets" for w in value.split()),
                dispatches=tuple(w for key, value in about if key == "calls" for w in value.split()),
            )
        self._find_runners()
        self.last = self._that_end()
        for name, function in self.functions.items():
            _Walk(self, self.scopes[name]).node(function.body, 0)
        _Walk(self, self.scopes[MAIN]).node(tree, 0)

    def _find_runners(self) -> None:
        """Functions that run their arguments, or hand them to one that does."""
        found: set[str] = set()
        while True:
            more = {n for n, f in self.functions.items() if n not in found and _runs_arguments(f.body, found)}
            if not more:
                break
            found |= more
        for name in found:
            self.scopes[name].runs_arguments = True

    def _that_end(self) -> frozenset[str]:
        """Functions that never come back: they end the program."""
        found: set[str] = set()
        while True:
            more = {n for n, f in self.functions.items() if n not in found and _ends(f.body, found)}
            if not more:
                return frozenset(found)
            found |= more

    @cached_property
    def effects(self) -> dict[str, dict[str, str]]:
        """By function: the variables that its caller finds set after a call, each with the function that sets it."""
        found = {name: dict.fromkeys(scope.leaks(), name) for name, scope in self.scopes.items()}
        todo = True
        while todo:
            todo = False
            for name, scope in self.scopes.items():
                for call in scope.calls:
                    more = found[call.function].keys() - found[name].keys() if call.shell == 0 else ()
                    found[name] |= {variable: found[call.function][variable] for variable in more}
                    todo = todo or bool(more)
        return found

    @cached_property
    def shared(self) -> frozenset[str]:
        declared = {name for scope in self.scopes.values() for name in scope.declared}
        main = {name for name, _ in self.scopes[MAIN].sets}
        outside = {n for s in self.scopes.values() if s.name != MAIN for n, _ in s.reads if not s.own(n)}
        return frozenset(declared | (main & outside) | {n for s in self.scopes.values() for n in s.trapped})

    def findings(self) -> Iterator[Finding]:
        yield from self.unseen
        for scope in self.scopes.values():
            yield from self._undeclared(scope)
            yield from self._clobbered(scope)
            yield from self._from_nowhere(scope)

    def _undeclared(self, scope: Scope) -> Iterator[Finding]:
        for name in sorted(self.shared & scope.leaks()):
            if scope.name != MAIN and not scope.declares(name):
                others = [s.name for s in self.scopes.values() if s.declares(name) or (s.name == MAIN and s.own(name))]
                yield Finding(scope.name, name, f"is shared (set by {', '.join(others)}), and not declared here")

    def _clobbered(self, scope: Scope) -> Iterator[Finding]:
        for call in scope.calls:
            callee, effects = self.scopes[call.function], self.effects[call.function]
            for name in {n for n, shell in scope.reads if scope.sees(n, shell, call.shell)} & effects.keys():
                of_all = self.scopes[MAIN].own(name) and self.scopes[effects[name]].declares(name)
                if not callee.declares(name) and not of_all:
                    way = f" (in {effects[name]})" if effects[name] != callee.name else ""
                    yield Finding(scope.name, name, f"is read here, and set by {callee.name}{way}, undeclared")

    def _from_nowhere(self, scope: Scope) -> Iterator[Finding]:
        setters: dict[str, list[str]] = {}
        for other in self.scopes.values():
            for name in {name for name, _ in other.sets}:
                setters.setdefault(name, []).append(other.name)
        for name in sorted({n for n, shell in scope.reads if not scope.sources}):
            if scope.own(name) or name in self.shared or name not in setters:
                continue
            if scope.name == MAIN or MAIN not in setters[name]:
                yield Finding(
                    scope.name, name, f"is read here, and set by nobody but {', '.join(setters[name])}, undeclared"
                )


def _functions(node: Node) -> Iterator[Function]:
    if isinstance(node, Function):
        yield node
    elif isinstance(node, Group):
        for item in node.items:
            yield from _functions(item)
    elif isinstance(node, Shell | For):
        yield from _functions(node.body)


def _simples(node: Node) -> Iterator[Simple]:
    if isinstance(node, Simple):
        yield node
        for word in words_of(node):
            for part in word.parts:
                if not isinstance(part, Read):
                    yield from _simples(part)
    elif isinstance(node, Group):
        for item in node.items:
            yield from _simples(item)
    elif isinstance(node, Shell | For):
        yield from _simples(node.body)


def _ends(node: Node, last: set[str]) -> bool:
    """Whether nothing behind the node runs."""
    match node:
        case Simple(words):
            return bool(words) and words[0].literal in {"exit", *last}
        case Group(items, "list"):
            return any(_ends(item, last) for item in items)
        case Group(items, "if" | "case" as kind, whole):
            start = 1 if kind == "if" else 2
            branches = items[start::2] if kind == "case" or not whole else (*items[start:-1:2], items[-1])
            return _ends(items[0], last) or (whole and all(_ends(branch, last) for branch in branches))
        case Group(items):
            return _ends(items[0], last)
    return False


def _runs_arguments(body: Node, runners: set[str]) -> bool:
    for simple in _simples(body):
        at = next((n for n, word in enumerate(simple.words) if word.all_arguments), None)
        before = simple.words[:at]
        if at is not None and (all(w.text == "\0" for w in before) or (before and before[0].text in runners)):
            return True
    return False


class _Walk:
    """Fills a scope from a tree."""

    def __init__(self, program: _Program, scope: Scope) -> None:
        self.program, self.scope = program, scope

    def node(self, node: Node, shell: int) -> None:
        match node:
            case Function():
                pass  # has a scope of its own
            case Group(items):
                for item in items:
                    self.node(item, shell)
            case Shell(body):
                self.node(body, self.started(shell))
            case For(name, words, body):
                for word in words:
                    self.word(word, shell)
                self.scope.sets.add((name, shell))
                self.node(body, shell)
            case Simple():
                self.simple(node, shell)

    def started(self, shell: int) -> int:
        self.scope.parents.append(shell)
        return len(self.scope.parents) - 1

    def word(self, word: Word, shell: int) -> None:
        for part in word.parts:
            if not isinstance(part, Read):
                self.node(part, shell)
            elif part.name[0].isalpha() or part.name[0] == "_":
                self.scope.reads.add((part.name, shell))
                if part.sets:
                    self.scope.sets.add((part.name, shell))

    def simple(self, node: Simple, shell: int) -> None:
        for word in words_of(node):
            self.word(word, shell)
        command = node.words[0].literal if node.words else None
        if not node.words or command in _SPECIAL_BUILTINS or command in self.program.functions:
            self.scope.sets |= {(name, shell) for name, _ in node.assigns}
        if node.words:
            self.command(node.words, shell)

    def command(self, words: tuple[Word, ...], shell: int) -> None:
        first, arguments = words[0], words[1:]
        command = first.literal
        if command in ("read", "export", "readonly", "unset"):
            self.named(command, arguments, shell)
        elif command == "trap":
            self.trap(arguments, shell)
        elif command == "eval" or (command == "." and shell == 0):
            self.program.unseen.append(Finding(self.scope.name, command, "can set any variable"))
        elif command == ".":
            self.scope.sources.add(shell)
        for name in self.called(first, arguments):
            if name in self.program.last:
                continue  # nothing of the caller's runs behind it
            self.scope.calls.add(Call(name, shell))
            if self.program.scopes[name].runs_arguments:
                known = {w.literal for w in arguments} & self.program.functions.keys()
                self.scope.calls |= {Call(n, shell) for n in known if n}

    def named(self, command: str, arguments: tuple[Word, ...], shell: int) -> None:
        for word in arguments:
            name = word.text.partition("=")[0]
            if name.startswith("-") or (command in ("export", "readonly") and "=" not in word.text):
                continue
            if "\0" not in name:
                self.scope.sets.add((name, shell))
            elif shell == 0 and not any(ANY in pattern for pattern in self.scope.declared):
                self.program.unseen.append(Finding(self.scope.name, command, "sets a variable of any name"))

    def trap(self, arguments: tuple[Word, ...], shell: int) -> None:
        if arguments and (text := arguments[0].literal) not in (None, "-", ""):
            inner = _Walk(self.program, Scope(self.scope.name))
            inner.node(parse(str(text)), 0)
            self.scope.trapped |= {name for name, _ in inner.scope.reads}
            self.scope.reads |= {(name, shell) for name, _ in inner.scope.reads}
            self.scope.calls |= {Call(call.function, shell) for call in inner.scope.calls}

    def called(self, first: Word, arguments: tuple[Word, ...]) -> list[str]:
        functions = self.program.functions
        if first.literal is not None:
            if first.literal not in functions:
                return []
            patterns = self.program.scopes[first.literal].dispatches
            argument = (arguments[0].literal or ANY) if arguments else ANY
            narrowed = [p.replace("$1", argument) for p in patterns]
            return [first.literal, *(n for n in functions if any(fnmatchcase(n, p) for p in narrowed))]
        if first.text.strip("\0") and not self.scope.dispatches and "/" not in first.text:
            return [name for name in functions if fnmatchcase(name, first.text.replace("\0", ANY))]
        return []


__all__ = ["Finding", "SyntaxProblem", "findings"]
