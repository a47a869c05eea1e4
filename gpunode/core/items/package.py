"""The request of node/packages/packages.sh, from the value of a role's `_packages` option.

Request files: `install` lines `NAME VERSION|- hold|-`, `remove` and `refresh` one name or path a line, `proxy` a URL,
`may_go` names that the package manager may remove along with them, one a line,
`alone` (1) when no other repositories than those of `refresh` are to be asked,
`after` packages of an earlier step that set up repositories, one a line: without them nothing is announced,
`keep` files that stay where a removed package would take them along, one a line,
`streams` lines `MODULE STREAM` of dnf's modules (`-`: none), `wait` seconds to wait for the package manager's lock,
`check` (1) in check mode.  Files without content are left out.
For taking packages back: `unhold` and `purge` (of removed packages, what they left: configuration, folders) one name a
line, `automatic` names that nobody asked for any more, `keys` of rpm's keyring that go.
Besides the usual lines the script prints `gpunode<TAB>locked<TAB>WHO` when it gave up waiting, and in check mode
`gpunode<TAB>unresolvable<TAB>WHY` when the package manager cannot do it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.grammar import PACKAGE, PROXY, VERSION
from gpunode.core.grouped import grouped
from gpunode.core.items.item import ABSENT, HostCase, Item, StateKind, StepKind
from gpunode.core.items.package_undo import PackageBack
from gpunode.core.items.repository import sources_path
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Changed, NodeFacts, PackageWant, Problem
from gpunode.core.printable import names
from gpunode.core.remote import as_flags, as_lines, values_of
from gpunode.core.spec.source import DISTRIBUTION
from gpunode.core.validation import Shape, check_value, flag, mapping, rows, text, texts

_NAME, _VERSION = PACKAGE.pattern, rf"{VERSION.pattern}\*?"
_PATH = r"/[^\s]*"
SHAPE = mapping(
    "One package transaction.",
    install=rows(
        "Packages to have.",
        name=text("Name of the package.", _NAME, required=True),
        version=text("Its version, which may end in C(*); empty means any.", _VERSION),
        hold=flag("Whether later upgrades leave it alone."),
    ),
    remove=texts("Packages to remove.", _NAME),
    may_go=texts("Packages that may be removed along with these.", _NAME),
    keep=texts("Files that stay where a removed package would take them along.", _PATH),
    after=texts("Packages of an earlier step that set up repositories.", _NAME),
    refresh=texts("Sources files whose repositories are fetched again.", _PATH),
    alone=flag("Whether no other repositories than these are asked."),
    streams=texts("Streams of dnf's modules, as MODULE:STREAM.", r"[a-zA-Z0-9._+-]+:[a-zA-Z0-9._+-]+"),
    proxy=text("URL of a proxy.", PROXY.pattern),
)
_LISTS = ("remove", "keep", "refresh", "may_go", "after")
_BACK = ("unhold", "purge", "automatic", "keys")  # of an undo, which no role's option asks for
_UNDO = Shape(type="dict", doc=SHAPE.doc, keys={**SHAPE.keys, **{key: texts("", _NAME) for key in _BACK}})


NOT_HELD, HELD = ", not held", ", held"
HOLD_ALONE = f"{NOT_HELD}; wanted held"  # ends the difference of a package that is right but for its hold
BROKEN_OFF = ", of a transaction that was interrupted"  # rpm may have two versions of it then
# nvidia-docker2 brought this file, and a person has edited it since: dpkg leaves it, rpm takes it along
TAKEN_ALONG = {"/etc/docker/daemon.json": ("nvidia-docker2", "nvidia-docker")}

_AGAIN = {"dnf": "dnf reinstall", "zypper": "zypper install --force", "pacman": "pacman -S"}


def lost_programs(facts: NodeFacts) -> Iterator[Problem]:
    """Packages without their program, which are installed for the package manager; what broke off is finished first."""
    broken = facts.lost_programs.values() if _broke_off(facts) else facts.broken_packages
    for package, paths in grouped((p, path) for path, p in facts.lost_programs.items() if p not in broken).items():
        again = _AGAIN.get(facts.package_manager, "apt-get install --reinstall")
        what = f"the package {package} has lost {', '.join(paths)}"
        yield Problem(what=what, fix=f"{again} {package}, on the node")


def _broke_off(facts: NodeFacts) -> bool:
    return any("-packages-" in transaction for transaction in facts.unfinished)


class _Initramfs(StateKind):
    def again(self, now: str, value: str) -> bool:
        return now == value or value != ABSENT


class _Group(StateKind):
    def stuck(self, now: str) -> str:
        return f"it has {now}" if now.startswith("members ") else ""


class _Stream(StateKind):
    def meaning(self, value: str) -> str:
        return ABSENT if value in ("", "-", ABSENT) else value


CDI = StateKind(name="cdi", by_packages=True)
PACKAGE_BACK = PackageBack(name="packages")
PACKAGES = (
    PACKAGE_BACK,
    _Stream(name="stream", field="streams", by_people=True, theirs=True, called="the stream of "),
    _Initramfs(name="initramfs", by_packages=True),
    CDI,
    *(StateKind(name=name, by_packages=True) for name in ("user", "kernel")),
    _Group(name="group", by_packages=True, called="the group "),
)


@dataclass(frozen=True, kw_only=True)
class PackageItem(Item):
    """A package that is to be there, in a version that may end in `*`, or in any."""

    NAME = "{package.name}"
    BACK = PACKAGES
    option: str = "packages"
    always: bool = True  # the package manager solves all packages of a role as one set
    package: PackageWant

    @property
    def wanted(self) -> str:
        return self.package.version or "*"

    def actual(self, facts: NodeFacts) -> str:
        found = facts.packages.get(self.name)
        if found is None:
            return ABSENT
        # an rpm's epoch stands in no package name, and in no version that is asked for
        version = found.version if facts.package_manager in ("apt", "") else found.version.rpartition(":")[2]
        if _broke_off(facts):
            return version + BROKEN_OFF
        return version + (NOT_HELD if self.package.hold and not found.held else "")

    def differs(self, have: str) -> bool:
        if have in ("", ABSENT) or have.endswith((NOT_HELD, BROKEN_OFF)):
            return have != self.wanted
        return not fnmatch.fnmatchcase(have, self.wanted)

    def difference(self, have: str) -> str:
        version = f"{'any version' if self.wanted == '*' else self.wanted}{', held' if self.package.hold else ''}"
        if have.endswith(NOT_HELD) and fnmatch.fnmatchcase(have.removesuffix(NOT_HELD), self.wanted):
            return have.removesuffix(NOT_HELD) + HOLD_ALONE
        return f"not installed; wanted {version}" if have == ABSENT else f"{have}; wanted {version}"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        version = {"version": self.package.version} if self.package.version else {}
        hold = {"hold": self.package.hold} if self.option == "packages" else {}
        return {"install": [{"name": self.name, **version, **hold}]}


@dataclass(frozen=True, kw_only=True)
class NoPackage(Item):
    """A package that is to go."""

    NAME = "{package}"
    WANTED = ABSENT
    BACK = PACKAGES
    option: str = "packages"
    package: str

    def actual(self, facts: NodeFacts) -> str:
        found = facts.packages.get(self.package)
        return found.version + HELD * found.held if found else ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        kept = [path for path in TAKEN_ALONG if path in case.facts.files and self.package in TAKEN_ALONG[path]]
        return {"remove": [self.package], **({"keep": kept} if kept else {})}


def _base(case: HostCase, role: str) -> dict[str, Any]:
    """What the transaction rests on; the role that stands first has written the sources."""
    solution, driver = case.solution, case.solution.driver if role == "driver" else None
    part = getattr(solution, role, None)
    alone = any(r.name == DISTRIBUTION for r in solution.repositories)
    names = [part.repository if part else "", *([DISTRIBUTION] if alone else [])]
    sources = [sources_path(name, case.facts) for name in names if name]
    optional = {
        "may_go": list(driver.may_go) if driver else [],
        "after": [item.name for item in case.of(role, "repositories") if case.pending(item)],
        "alone": alone,
        "streams": [driver.stream] if driver and driver.stream else [],
    }
    return {
        "install": [],
        "remove": [],
        **{key: found for key, found in optional.items() if found},
        "refresh": [key.name for key in case.items if key.name in sources],
        "proxy": case.spec.proxy,
    }


STEP = StepKind(shape=SHAPE, action="packages", argument="packages", base=_base)
REPOSITORIES = replace(STEP, base=lambda case, role: {"proxy": case.spec.proxy})  # of packages that set them up


def packages_request(value: Mapping[str, Any], *, wait: int = 300, check: bool = False) -> dict[str, bytes]:
    """{install: [{name, version, hold}], remove: [name], refresh: [path], streams: [name:stream], proxy, …} → files.

    `wait` is in seconds.  A version may end in `*`; empty or missing means any.  Raises InputError on names that a
    shell or a package manager could read as something else.
    """
    value = _checked(value)
    files = {key: list(value.get(key) or ()) for key in (*_LISTS, *_BACK)}
    files["install"] = [
        f"{one['name']} {one.get('version') or '-'} {'hold' if one.get('hold') else '-'}" for one in value["install"]
    ]
    files["streams"] = [name.replace(":", " ") for name in value.get("streams") or ()]
    files["proxy"] = [value["proxy"]] if value.get("proxy") else []
    request = {name: as_lines(lines) for name, lines in files.items() if lines}
    return request | {"wait": f"{wait}\n".encode()} | as_flags(alone=value.get("alone"), check=check)


def installed_text(changed: Sequence[Changed], wanted: Sequence[str]) -> str:
    """What the script has installed in a few words: nvidia-open 595.91.07-1 installed (43 packages).

    The package that is named is the first of `wanted` that came or changed; "" where none did.
    """
    found = {one.name: one.now for one in changed if one.kind == "package" and one.now}
    if not found:
        return ""
    name = next((name for name in wanted if name in found), next(iter(found)))
    return f"{name} {found[name]} installed" + (f" ({len(found)} packages)" if len(found) > 1 else "")


def held_text(changed: Sequence[Changed]) -> str:
    """The same of a run that has only held packages; "" of another one."""
    found = [one.name for one in changed if one.kind == "package" and one.text.startswith("held ")]
    return f"{names(found)} held" if found and len(found) == len(changed) else ""


def nothing_to_do(value: Mapping[str, Any]) -> bool:
    """Whether the value asks for no package at all: then the node need not be asked.  Raises InputError."""
    checked = _checked(value)
    return not checked["install"] and not checked.get("remove")


def _checked(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value with every package to install as a mapping.  Raises InputError."""
    wanted = value.get("install") or []
    if isinstance(wanted, list | tuple):
        wanted = [{"name": item} if isinstance(item, str) else item for item in wanted]
    found = {**value, "install": wanted}
    check_value("packages", found, _UNDO)
    return found


def locked_by(stdout: str) -> str:
    """Who held the package manager's lock when the script gave up waiting, "" when it did not."""
    return next(reversed(values_of(stdout, "locked")), "")
