"""The driver's part of the wanted state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpunode.core.items.sources import render
from gpunode.core.items.values import ABSENT, IN_FORCE, PRESENT, Key, Want, file_want, no_file, package_want
from gpunode.core.model import ConfigFile, DriverChoice, NodeFacts, Problem, Reason
from gpunode.core.module_parameters import CONF as PARAMETERS_CONF
from gpunode.core.module_parameters import Parameters
from gpunode.core.repo_files import has_secret, repo_files, with_enabled
from gpunode.core.spec import DriverSpec

FENCE_CONF = "/etc/apt/apt.conf.d/52gpunode-unattended-upgrades"
UNIT = "unattended-upgrades"
_DRIVER = (
    *("nvidia-", "libnvidia-", "xserver-xorg-video-nvidia", "firmware-nvidia-", "cuda-drivers", "cuda-compat-"),
    *("libcuda1$", "libcudadebugger1$", "libnvcuvid1$", "libnvoptix1$", "libnvsdm", "nvlsm$"),
    *("datacenter-gpu-manager",),
)
_PREBUILT = "linux-modules-nvidia-"
# with Ubuntu's built modules a kernel must not come before its module does: without DKMS nothing builds one
_KERNELS = (
    _PREBUILT,
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
    "linux-(image|headers|modules|generic|virtual|aws|azure|gcp|oracle)",
)


def fence_patterns(facts: NodeFacts, driver: DriverChoice) -> tuple[str, ...]:
    """What unattended upgrades must pass by; nothing where they are not installed, or nothing is to be held."""
    held = any(package.hold for package in driver.packages)
    if not held or UNIT not in facts.services or facts.package_manager not in ("apt", ""):
        return ()
    prebuilt = any(package.name.startswith(_PREBUILT) for package in driver.packages)
    return (*_DRIVER, *(_KERNELS if prebuilt else ()))


MODULE_FOR = "nvidia module for kernel "
NOUVEAU_CONF = "/etc/modprobe.d/gpunode-nouveau.conf"
PIN_CONF = "/etc/apt/preferences.d/gpunode-nvidia-driver"


def wanted_driver(
    facts: NodeFacts, spec: DriverSpec, driver: DriverChoice, templates: Mapping[str, str]
) -> Iterator[tuple[Key, Want]]:
    """Packages, modules for every kernel, and services; nothing of a driver that is only verified."""
    if driver.method == "preinstalled":
        return
    loaded = driver.version if driver.runfile else "" if facts.driver.runfile else facts.driver.userspace
    if driver.pin and facts.package_manager in ("apt", ""):  # elsewhere a lock on the packages does it
        text = render(templates["driver-pin.j2"], pin=driver.pin)
        yield Key("driver", "sources", PIN_CONF), file_want(PIN_CONF, text)
    if driver.runfile:
        yield Key("driver", "runfile", "driver"), Want(value=driver.version, data=driver.runfile)
    elif facts.driver.runfile:
        yield Key("driver", "uninstall", "driver"), Want(value=ABSENT)
    yield from _enabled(facts, driver)
    for package in driver.repository_packages:
        yield Key("driver", "repositories", package.name), package_want(package)
    for package in (*driver.kernel_packages, *driver.packages):
        yield Key("driver", "packages", package.name), package_want(package)
    for name in driver.remove:
        yield Key("driver", "packages", name), Want(value=ABSENT)
    if patterns := fence_patterns(facts, driver):
        text = render(templates["unattended-upgrades.conf.j2"], patterns=patterns)
        yield Key("driver", "sources", FENCE_CONF), file_want(FENCE_CONF, text)
    elif FENCE_CONF in facts.files:
        yield Key("driver", "sources", FENCE_CONF), no_file(FENCE_CONF)
    yield Key("driver", "files", NOUVEAU_CONF), file_want(NOUVEAU_CONF, templates["nouveau.conf.j2"])
    yield from _parameters(facts, spec.module_parameters, templates)
    yield Key("driver", "activate", "module nouveau"), Want(value=ABSENT)
    if facts.driver.nova:
        yield Key("driver", "activate", "module nova_core"), Want(value=ABSENT)
    yield Key("driver", "activate", "module nvidia"), Want(value=PRESENT)
    yield Key("driver", "activate", "module version"), Want(value=loaded or PRESENT)
    built = "runfile" if driver.runfile else "packages"
    if facts.driver.loaded_flavour not in ("", driver.flavour):
        yield Key("driver", "activate", "module flavour"), Want(value=driver.flavour)
    for kernel in facts.kernels:
        if kernel.image:
            yield Key("driver", built, f"{MODULE_FOR}{kernel.release}"), Want(value=PRESENT, data=driver.flavour)
    for unit in driver.services:
        yield Key("driver", "activate", f"service {unit}"), Want(value="active, enabled")


def _enabled(facts: NodeFacts, driver: DriverChoice) -> Iterator[tuple[Key, Want]]:
    """The distribution's own repository that is set up and off, switched on in the file that sets it up."""
    for file, text in _switched_off(facts, driver):
        if not has_secret(text):
            why = Reason(what=driver.builder, why="has what packages of EPEL need, and is not enabled")
            want = file_want(file.path, with_enabled(text, driver.builder), f"{file.mode:04o}")
            yield Key("driver", "sources", file.path), replace(want, reasons=(why,))


def builder_problems(facts: NodeFacts, driver: DriverChoice) -> tuple[Problem, ...]:
    """A file with a password in it is edited by nobody but its owner: a plan would hold the whole of it."""
    return tuple(
        Problem(
            what=f"the repository {driver.builder} is not enabled, and {file.path} holds a user or a password",
            fix=f"enable it on the node: dnf config-manager --set-enabled {driver.builder}",
        )
        for file, text in _switched_off(facts, driver)
        if has_secret(text)
    )


def _switched_off(facts: NodeFacts, driver: DriverChoice) -> Iterator[tuple[ConfigFile, str]]:
    for file, text in repo_files(facts.files) if driver.builder else ():
        if with_enabled(text, driver.builder) != text:
            yield file, text


def _parameters(facts: NodeFacts, wanted: Parameters, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    if any(wanted.values()):
        text = render(templates["nvidia-parameters.conf.j2"], parameters=wanted)
        yield Key("driver", "files", PARAMETERS_CONF), file_want(PARAMETERS_CONF, text)
        yield Key("driver", "activate", "parameters"), Want(value=IN_FORCE, data=wanted)
    elif PARAMETERS_CONF in facts.files:
        yield Key("driver", "files", PARAMETERS_CONF), no_file(PARAMETERS_CONF)
