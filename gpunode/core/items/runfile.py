"""The request of node/packages/runfile.sh, from preflight_fetch, driver_runfile, driver_uninstall and cuda_runfile.

Request files: `mode` (fetch, install, uninstall, recover), `kind` (driver, cuda), `name` of the file, `version`, `urls`
one a line, `sha256` (without it the one that stands beside the file: URL.sha256sum), `modules` (open, proprietary),
`options` of the installer one a line, `proxy` a URL, `given` the path on the node of a file that was sent there,
`check` (1) in check mode.  Besides the usual lines the script prints `gpunode<TAB>need<TAB>NAME` where the file has to
come from the machine that runs gpunode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.grammar import PROXY, URL
from gpunode.core.items.item import ABSENT, HostCase, Item, StateKind, StepKind
from gpunode.core.late import dataclass
from gpunode.core.model import Flavour, NodeFacts, Runfile
from gpunode.core.remote import as_flags, as_lines, values_of
from gpunode.core.validation import check_one, rows, text, texts

MODES = ("fetch", "install", "uninstall", "recover")
_KIND = text("What it installs.", choices=("driver", "cuda"), required=True)
_VERSION = text("Its version.", r"\d+(\.\d+)+|unknown", required=True)
UNINSTALL = rows("What installers installed and is to go.", kind=_KIND, version=_VERSION)
SHAPE = rows(
    "NVIDIA's self-extracting installers.",
    kind=_KIND,
    name=text("Name of the file.", r"[A-Za-z0-9][A-Za-z0-9+._-]*", required=True),
    version=_VERSION,
    urls=texts("Where it is fetched from.", URL.pattern),
    path=text("Where it is on the controller, in place of C(urls).", r"[^\0\n]+"),
    sha256=text("Its checksum; without it the one published as URL.sha256sum.", r"[0-9a-f]{64}"),
    options=texts("Options of the installer.", r"-[A-Za-z0-9=._/+-]+"),
    modules=text("Kernel modules of a driver.", choices=("open", "proprietary")),
    proxy=text("URL of a proxy.", PROXY.pattern),
)


RUNFILE = StateKind(name="runfile", fields={ABSENT: "installers"})


@dataclass(frozen=True, kw_only=True)
class Installed(Item):
    """What an installer of the role brings: a driver, or a toolkit of CUDA."""

    BACK = (RUNFILE,)
    WANTED = "{runfile.version}"
    option: str = "runfile"
    always: bool = True  # one that has been run says so itself, and builds what modules are missing
    runfile: Runfile

    @property
    def name(self) -> str:
        return "driver" if self.role == "driver" else self.runfile.version

    def actual(self, facts: NodeFacts) -> str:
        found = facts.driver.runfile if self.role == "driver" else self.wanted if self.wanted in facts.cuda else ""
        return found or ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        flavour = case.solution.driver.flavour if self.role == "driver" and case.solution.driver else None
        return runfile_value(self.role, self.runfile, proxy=case.spec.proxy, modules=flavour)


@dataclass(frozen=True, kw_only=True)
class Uninstalled(Item):
    """A driver that an installer brought and that is to go before packages come."""

    NAME = "driver"
    WANTED = ABSENT
    BACK = (RUNFILE,)
    role: str = "driver"
    option: str = "uninstall"

    def actual(self, facts: NodeFacts) -> str:
        return facts.driver.runfile or ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"kind": self.role, "version": case.facts.driver.runfile}


STEP = StepKind(shape=SHAPE, action="runfile", argument="install")
UNINSTALL_STEP = StepKind(shape=UNINSTALL, action="runfile", argument="uninstall")


def runfile_value(kind: str, runfile: Runfile, *, proxy: str, modules: Flavour | None = None) -> dict[str, Any]:
    """What a step says of one installer, plain data: kind, name, version, where from, checksum, options."""
    value: dict[str, Any] = {
        "kind": kind,
        "name": runfile.name,
        "version": runfile.version,
        "urls": list(runfile.urls),
        "path": runfile.path,
        "sha256": runfile.sha256,
        "options": list(runfile.options),
        "modules": modules or "",
        "proxy": proxy,
    }
    return {key: text for key, text in value.items() if text}


def runfile_request(
    mode: str, value: Mapping[str, Any] = {}, *, given: str = "", check: bool = False
) -> dict[str, bytes]:
    """A value as above → request files; `given` is where on the node a file lies that was sent there.

    Raises InputError on what a shell or an installer could read as something else.
    """
    if mode not in MODES:
        raise InputError(f"runfile: {mode!r}", expected=f"one of {', '.join(MODES)}")
    if mode != "recover":
        check_one("runfile", value, UNINSTALL if mode == "uninstall" else SHAPE)
    lines = {key: found if isinstance(found, list) else [found] for key, found in value.items() if found}
    lines.pop("path", None)  # it is the controller's
    lines |= {"mode": [mode]} | ({"given": [given]} if given else {})
    return {name: as_lines(found) for name, found in lines.items()} | as_flags(check=check)


def needs_file(stdout: str) -> bool:
    """Whether the node asks for the file to be sent."""
    return bool(values_of(stdout, "need"))
