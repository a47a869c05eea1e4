"""The driver's part of the wanted state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.core.model import DriverChoice, NodeFacts
from gpunode.core.sources import render
from gpunode.core.state.values import ABSENT, PRESENT, Key, Want, file_want, package_want

MODULE_FOR = "nvidia module for kernel "
NOUVEAU_CONF = "/etc/modprobe.d/gpunode-nouveau.conf"
PIN_CONF = "/etc/apt/preferences.d/gpunode-nvidia-driver"


def wanted_driver(facts: NodeFacts, driver: DriverChoice, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """Packages, modules for every kernel, and services; nothing of a driver that is only verified."""
    if driver.method == "preinstalled":
        return
    if driver.pin and facts.package_manager in ("apt", ""):  # elsewhere a lock on the packages does it
        text = render(templates["driver-pin.j2"], pin=driver.pin)
        yield Key("driver", "sources", PIN_CONF), file_want(PIN_CONF, text)
    for package in (*driver.kernel_packages, *driver.packages):
        yield Key("driver", "packages", package.name), package_want(package)
    for name in driver.remove:
        yield Key("driver", "packages", name), Want(value=ABSENT)
    yield Key("driver", "files", NOUVEAU_CONF), file_want(NOUVEAU_CONF, templates["nouveau.conf.j2"])
    yield Key("driver", "activate", "module nouveau"), Want(value=ABSENT)
    yield Key("driver", "activate", "module nvidia"), Want(value=PRESENT)
    yield Key("driver", "activate", "module version"), Want(value=facts.driver.userspace or PRESENT)
    if facts.driver.loaded_flavour not in ("", driver.flavour):
        yield Key("driver", "activate", "module flavour"), Want(value=driver.flavour)
    for kernel in facts.kernels:
        if kernel.image:
            yield Key("driver", "packages", f"{MODULE_FOR}{kernel.release}"), Want(value=PRESENT, data=driver.flavour)
    for unit in driver.services:
        yield Key("driver", "activate", f"service {unit}"), Want(value="active, enabled")
