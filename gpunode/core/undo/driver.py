"""The driver's packages and kernel modules: which records brought it, and what boots have loaded without a record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.core.items.item import ABSENT
from gpunode.core.undo.journal import JournalSnapshot, Record

DRIVER = "nvidia"
# packages that bring the module, or that are the driver by another name; not the tools and libraries around it
_DRIVER = re.compile(
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


def modules_loaded_at_boot(
    journal: JournalSnapshot, records: Sequence[Record], known: Sequence[Record], remove: set[str]
) -> Booted:
    """Where the driver that `records` brought goes (with the packages `remove`), or has gone, and none was before."""
    baseline = next((record for record in known if record.op == "baseline"), None)
    if baseline is None or baseline.more.get("driver") != "" or not _is_removed(journal, records, remove):
        return Booted()
    own = [name for name in baseline.more.get("modules", ()) if journal.states.get(("module", name)) == ABSENT]
    return Booted(unload=(DRIVER,) if journal.driver else (), load=tuple(own), goes=True)


def _is_removed(journal: JournalSnapshot, records: Sequence[Record], remove: set[str]) -> bool:
    """Whether the records brought a driver, and nothing of one is to stay: of packages, or of NVIDIA's installer."""
    ours = {
        item["name"]
        for record in records
        if record.op == "packages" and record.phase != "intent"
        for item in record.more.get("added", ())
        if is_driver(item["name"])
    }
    installer = any(
        record.op == "state"
        and (record.more["kind"], record.more["name"], record.more["from"]) == ("runfile", "driver", ABSENT)
        for record in records
    )
    stay = [name for name in journal.packages if name not in remove and is_driver(name)]
    return bool(ours or installer) and not stay


def is_driver(name: str) -> bool:
    return bool(_DRIVER.match(name))
