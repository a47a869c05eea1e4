"""The driver's packages and kernel modules: which records brought it, and what boots have loaded without a record."""

from __future__ import annotations

from collections.abc import Collection

from gpunode.core.items.item import ABSENT
from gpunode.core.items.package_undo import versions
from gpunode.core.late import dataclass, regex
from gpunode.core.model.journal import JournalSnapshot, Scope

DRIVER = "nvidia"
# packages that bring the module, or that are the driver by another name; not the tools and libraries around it
_DRIVER = regex(
    r"cuda-drivers|kmod-nvidia|dkms-nvidia|linux-(modules|objects)-nvidia|nvidia(-lts)?\Z"
    r"|nvidia-(open|driver|dkms|kernel|kmod|headless|gfxG|legacy|\d)|nvidia-.*(dkms|kmp)"
)


@dataclass(frozen=True, kw_only=True)
class Booted:
    """Modules to unload before the driver's packages go, and to load afterwards."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    goes: bool = False  # the driver, of which nothing was loaded before

    def comes_back(self, name: str) -> bool:
        """Whether a module that a record calls loaded is to be so again.

        Of what a boot or a package's script has loaded, the first record may be that a later run unloaded it.
        """
        return not (self.goes and name.startswith(DRIVER))


def modules_loaded_at_boot(journal: JournalSnapshot, scope: Scope, remove: Collection[str]) -> Booted:
    """Where the driver that the records brought goes (with the packages `remove`), or has gone, and none was before."""
    baseline = scope.baseline
    if baseline is None or baseline.get("driver") != "" or not _is_removed(journal, scope, remove):
        return Booted()
    own = [name for name in baseline.get("modules", ()) if journal.states.get(("module", name)) == ABSENT]
    return Booted(unload=(DRIVER,) if journal.driver else (), load=tuple(own), goes=True)


def _is_removed(journal: JournalSnapshot, scope: Scope, remove: Collection[str]) -> bool:
    """Whether the records brought a driver, and nothing of one is to stay: of packages, or of NVIDIA's installer."""
    ours = any(was == ABSENT and is_driver(name) for name, was, _ in versions(scope.records))
    installer = any(one.mine and one.before == ABSENT for one in scope.states.get("runfile", {}).get("driver", ()))
    return (ours or installer) and not any(name not in remove and is_driver(name) for name in journal.packages)


def driver_left(journal: JournalSnapshot, scope: Scope) -> str:
    """The driver that is loaded where all of gpunode goes, and none was before it came."""
    touched = any(r.op in ("packages", "runfile") for r in scope.records) or "module" in scope.states
    none = scope.baseline is not None and scope.baseline.get("driver") == ""
    return journal.driver if scope.whole and touched and none else ""


def is_driver(name: str) -> bool:
    return bool(_DRIVER.match(name))
