"""What a node has, in the words of what it should have."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.cdi import made_by_ctk, stale
from gpunode.core.errors import GpunodeError
from gpunode.core.items.driver import MODULE_FOR
from gpunode.core.items.first_boot import UNIT
from gpunode.core.items.gpu_containers import LINKS, links_found
from gpunode.core.items.sharing import actual_sharing
from gpunode.core.items.sources import SourceFile
from gpunode.core.items.values import ABSENT, BROKEN_OFF, FRESH, IN_FORCE, NOT_HELD, PRESENT, Key, Want, Wanted
from gpunode.core.model import Edit, NodeFacts, PackageWant
from gpunode.core.module_parameters import not_in_force
from gpunode.core.openpgp import fingerprints

ENABLED = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")


def actual(facts: NodeFacts, want: Wanted) -> dict[Key, str]:
    """What the node has for each wanted key, in the same words."""
    return {key: _actual(facts, key, item, want.edits) for key, item in want.items.items()}


def _actual(facts: NodeFacts, key: Key, item: Want, edits: Mapping[str, Edit]) -> str:
    if key.name.startswith(MODULE_FOR):
        kernel = next((k for k in facts.kernels if k.release == key.name.removeprefix(MODULE_FOR) and k.module), None)
        return (
            ABSENT if kernel is None else PRESENT if kernel.flavour in ("", item.data) else f"{kernel.flavour} modules"
        )
    if key.option in ("packages", "repositories"):
        found = facts.packages.get(key.name)
        if found is None:
            return ABSENT
        if item.value == ABSENT:
            return found.version
        hold = isinstance(item.data, PackageWant) and item.data.hold
        # an rpm's epoch stands in no package name, and in no version that is asked for
        version = found.version if facts.package_manager in ("apt", "") else found.version.rpartition(":")[2]
        if any("-packages-" in transaction for transaction in facts.unfinished):
            return version + BROKEN_OFF
        return version + (NOT_HELD if hold and not found.held else "")
    if key.option in ("runfile", "uninstall"):
        there = facts.driver.runfile if key.role == "driver" else item.value if item.value in facts.cuda else ""
        return there or ABSENT
    if key.option in ("sources", "files"):
        return _actual_file(facts, key.name, item)
    if key.option == "edits":
        pending = facts.runtime(key.name) is None or edits[key.name].changes or facts.unfinished
        return "to be edited" if pending else "to be restarted" if edits[key.name].restart else "configured"
    if key.option == "config":
        return "to be edited" if edits[key.name].changes or facts.unfinished else "configured"
    if key.option == "first_boot":
        return facts.first_boot.program or ABSENT
    if key.role == "sharing" and not key.name.startswith(("enabled ", "service ")):
        return _actual_file(facts, key.name, item) if isinstance(item.data, SourceFile) else actual_sharing(facts, key)
    if key.option == "cdi":
        return "; ".join(stale(made_by_ctk(facts))) or FRESH
    return _actual_activation(facts, key, item)


def _actual_activation(facts: NodeFacts, key: Key, item: Want) -> str:
    kind, _, name = key.name.partition(" ")
    if key == Key("cuda", "activate", "default"):
        return facts.cuda_default
    if key.name == LINKS:
        return links_found(facts)
    if kind == "enabled":
        return _enabled(facts, name.removesuffix(".service"))
    if kind == "service":
        service = facts.services.get(name.removesuffix(".service"))
        if service is None:
            return ABSENT
        enabled = "enabled" if service.enabled in ENABLED else service.enabled or "disabled"
        return f"{service.active or 'inactive'}, {enabled}"
    if kind == "sysctl":
        return facts.sysctl.get(name, ABSENT)
    if key.name == "parameters":
        return "; ".join(not_in_force(item.data, facts.driver.parameters)) or IN_FORCE
    if name == "nova_core":
        return PRESENT if facts.driver.nova else ABSENT
    if name == "nouveau":
        return PRESENT if facts.driver.nouveau else ABSENT
    if name == "version":
        return facts.driver.loaded or ABSENT
    if name == "flavour":
        return facts.driver.loaded_flavour
    return PRESENT if name in facts.modules else ABSENT


def _enabled(facts: NodeFacts, name: str) -> str:
    """Of the first boot's own unit: one that has done its work and is disabled since is as good as enabled."""
    service = facts.services.get(name)
    done = f"{name}.service" == UNIT and facts.first_boot.status == "passed"
    if done or (service and service.enabled in ENABLED):
        return "enabled"
    return service.enabled or "disabled" if service else ABSENT


def _actual_file(facts: NodeFacts, path: str, item: Want) -> str:
    file = facts.files.get(path)
    if file is None or not file.sha256:
        return ABSENT
    if item.value == ABSENT:
        return PRESENT
    if item.value.startswith("key "):
        try:
            return "key " + " ".join(fingerprints(file.data or b""))
        except GpunodeError:
            return "not a key"
    return f"{file.sha256[:16]} {file.mode:04o}"
