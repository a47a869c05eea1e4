"""The NVIDIA driver: packages or an installer, modules for every kernel, and what is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.items.activation import LOADED, Module, ServiceItem
from gpunode.core.items.activation import STEP as activation_step
from gpunode.core.items.file import File, file_if, render
from gpunode.core.items.item import ABSENT, PRESENT, Found, HostCase, Item, Question, reboots
from gpunode.core.items.package import PACKAGES as BY_PACKAGES
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.items.runfile import RUNFILE, Installed, Uninstalled
from gpunode.core.late import dataclass, replace
from gpunode.core.model import ConfigFile, DriverChoice, NodeFacts, Problem, Reason
from gpunode.core.printable import few
from gpunode.core.solve.repo_files import has_secret, repo_files, with_enabled
from gpunode.core.spec.module_parameters import CONF as PARAMETERS_CONF
from gpunode.core.spec.module_parameters import Parameters, not_in_force, shown

MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
UNATTENDED_CONF = "/etc/apt/apt.conf.d/52gpunode-unattended-upgrades"
UNIT = "unattended-upgrades"
FABRIC_CONF = "/etc/modules-load.d/gpunode-nvlink.conf"
FABRIC_HEAD = "# written by gpunode: what the NVIDIA fabric manager needs of an NVLink 5 system\n"
_DRIVER = (
    *("nvidia-", "libnvidia-", "xserver-xorg-video-nvidia", "firmware-nvidia-", "cuda-drivers", "cuda-compat-"),
    *("libcuda1$", "libcudadebugger1$", "libnvcuvid1$", "libnvoptix1$", "libnvsdm", "nvlsm$"),
    *("datacenter-gpu-manager",),
)
_PREBUILT = "linux-modules-nvidia-"
_DRAWS = ("libnvidia-gl-", "xserver-xorg-video-nvidia")  # OpenGL and X11, which Canonical's headless packages lack
_SCREENS = ("display-manager", "gdm", "gdm3", "lightdm", "lxdm", "sddm", "xdm")  # the first is a link to another
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


def fenced(facts: NodeFacts) -> re.Pattern[str]:
    """The names of packages that unattended upgrades pass by because of gpunode; matches nothing where it has not."""
    file = facts.files.get(UNATTENDED_CONF)
    patterns = re.findall(rb'^ *"(.*)";$', file.data or b"", re.MULTILINE) if file else []
    return re.compile("|".join(pattern.decode() for pattern in patterns) or "(?!)")


NOUVEAU_CONF = "/etc/modprobe.d/gpunode-nouveau.conf"
PIN_CONF = "/etc/apt/preferences.d/gpunode-nvidia-driver"


@dataclass(frozen=True, kw_only=True)
class _Loaded(Item):
    """Something of the modules that are loaded."""

    BACK = (LOADED,)
    ENDS = "driver"
    FIRST_BOOT = "smoke"
    role: str = "driver"
    option: str = "activate"


@dataclass(frozen=True, kw_only=True)
class Version(_Loaded):
    """The version of the driver that is loaded."""

    NAME = "module version"
    ASKED_BY = "driver.version"
    always: bool = True
    version: str  # empty: any
    asked: str  # the one that has to be loaded; empty: that of the libraries on the node

    @property
    def wanted(self) -> str:
        return self.version or PRESENT

    def actual(self, facts: NodeFacts) -> str:
        return facts.driver.loaded or ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"version": self.asked}


@dataclass(frozen=True, kw_only=True)
class LoadedFlavour(_Loaded):
    """The flavour of the modules that are loaded."""

    NAME = "module flavour"
    WANTED = "{flavour}"
    flavour: str

    def actual(self, facts: NodeFacts) -> str:
        return facts.driver.loaded_flavour

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"flavour": self.flavour}


@dataclass(frozen=True, kw_only=True)
class LoadedParameters(_Loaded):
    """Parameters of the driver's modules, as the loaded ones have them."""

    NAME = "parameters"
    ASKED_BY = "driver.module_parameters"
    WANTED = "in force"
    IN_WORDS = True
    always: bool = True
    parameters: Parameters

    def actual(self, facts: NodeFacts) -> str:
        return "; ".join(not_in_force(self.parameters, facts.driver.parameters)) or self.wanted

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"parameters": shown(self.parameters)}


@dataclass(frozen=True, kw_only=True)
class Built(Item):
    """The driver's module for a kernel, as packages or the runfile bring it."""

    NAME = "nvidia module for kernel {kernel}"
    BACK = (*BY_PACKAGES, RUNFILE)
    WANTED = PRESENT
    role: str = "driver"
    kernel: str
    flavour: str

    def actual(self, facts: NodeFacts) -> str:
        kernel = next((k for k in facts.kernels if k.release == self.kernel and k.module), None)
        if kernel is None:
            return ABSENT
        return PRESENT if kernel.flavour in ("", self.flavour) else f"{kernel.flavour} modules"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        """Nothing: the packages or the installer, which the step always has, build it."""
        return {}

    def alone(self, facts: NodeFacts) -> tuple[str, str]:
        """Packages are all there, and a kernel's module has gone or was never built."""
        return "Build the NVIDIA module for", self.kernel


def wanted(question: Question) -> Found:
    """Packages, modules for every kernel, and services; nothing of a driver that is only verified."""
    facts, driver, templates = question.facts, question.solution.driver, question.templates
    if driver is None:
        return
    yield from _problems(facts, driver)
    if driver.method == "preinstalled":
        if not question.spec.image.load:  # the first boot loads it
            yield from (*_modules(facts, driver), *_services(driver))
        return
    yield from _sources(facts, driver, templates)
    yield from _installed(facts, driver)
    yield File(role="driver", path=NOUVEAU_CONF, text=templates["nouveau.conf.j2"])
    yield from _parameters(facts, question.spec.driver.module_parameters, templates)
    if driver.modules:
        yield File(role="driver", path=FABRIC_CONF, text=FABRIC_HEAD + "".join(f"{name}\n" for name in driver.modules))
    yield from _modules(facts, driver)
    if driver.runfile:
        yield Version(version=driver.version, asked=driver.version)
    else:
        have = "" if facts.driver.runfile else facts.driver.userspace
        yield Version(version=have, asked=question.spec.driver.version)
    if facts.driver.loaded_flavour not in ("", driver.flavour):
        yield LoadedFlavour(flavour=driver.flavour)
    for kernel in facts.kernels:
        if kernel.image and kernel.release not in driver.without:
            built = "runfile" if driver.runfile else "packages"
            yield Built(option=built, kernel=kernel.release, flavour=driver.flavour)
    yield from _services(driver)


def _modules(facts: NodeFacts, driver: DriverChoice) -> Iterator[Module]:
    for name in ("nouveau", *(["nova_core"] if facts.driver.nova else [])):
        yield Module(role="driver", module=name, loaded=False, always=True)
    yield from (Module(role="driver", module=name, always=True) for name in driver.modules)
    yield Module(role="driver", module=MODULES[0], along=MODULES[1:], always=True)


def _services(driver: DriverChoice) -> Iterator[ServiceItem]:
    yield from (ServiceItem(role="driver", unit=unit) for unit in driver.services)


def _installed(facts: NodeFacts, driver: DriverChoice) -> Found:
    """The runfile or the packages, and what has to go for them."""
    if driver.runfile:
        yield Installed(role="driver", runfile=driver.runfile)
    elif facts.driver.runfile:
        yield Uninstalled()
    for package in driver.repository_packages:
        yield PackageItem(role="driver", option="repositories", package=package)
    for package in (*driver.kernel_packages, *driver.packages):
        yield PackageItem(role="driver", package=package)
    for name in driver.remove:
        yield NoPackage(role="driver", package=name)


def _sources(facts: NodeFacts, driver: DriverChoice, templates: Mapping[str, str]) -> Iterator[File]:
    if driver.pin and facts.package_manager in ("apt", ""):  # elsewhere a lock on the packages does it
        yield File(
            role="driver", option="sources", path=PIN_CONF, text=render(templates["driver-pin.j2"], pin=driver.pin)
        )
    for file, text in _switched_off(facts, driver):
        if not has_secret(text):  # the distribution's own repository, switched on in the file that sets it up
            why = Reason(what=driver.builder, why="has what packages of EPEL need, and is not enabled")
            yield File(
                role="driver",
                option="sources",
                path=file.path,
                text=with_enabled(text, driver.builder),
                mode=f"{file.mode:04o}",
                reasons=(why,),
            )
    patterns = fence_patterns(facts, driver)
    text = render(templates["unattended-upgrades.conf.j2"], patterns=patterns) if patterns else ""
    yield from file_if(facts, text, role="driver", option="upgrades", path=UNATTENDED_CONF)


def _problems(facts: NodeFacts, driver: DriverChoice) -> Iterator[Problem]:
    """A screen that would stay dark; a file with a password, of which a plan would hold the whole, is its owner's."""
    headless = [package.name for package in driver.packages if "-headless-" in package.name]
    drawing = [name for name in driver.remove if headless and name.startswith(_DRAWS)]
    screens = [unit for unit in map(facts.service, _SCREENS) if unit and unit.active == "active"]
    if drawing and screens:
        yield Problem(
            what=f"{screens[0].name} runs a desktop, and {few(drawing)} would go: {headless[0]} has no OpenGL and no "
            "X11 driver",
            fix="driver.method: preinstalled keeps the desktop's driver; or end the desktop for good on the node: "
            f"systemctl disable --now {screens[0].name}",
        )
    for file, text in _switched_off(facts, driver):
        if has_secret(text):
            yield Problem(
                what=f"the repository {driver.builder} is not enabled, and {file.path} holds a user or a password",
                fix=f"enable it on the node: dnf config-manager --set-enabled {driver.builder}",
            )


def _switched_off(facts: NodeFacts, driver: DriverChoice) -> Iterator[tuple[ConfigFile, str]]:
    for file, text in repo_files(facts.files) if driver.builder else ():
        if with_enabled(text, driver.builder) != text:
            yield file, text


def _parameters(facts: NodeFacts, parameters: Parameters, templates: Mapping[str, str]) -> Iterator[Item]:
    text = render(templates["nvidia-parameters.conf.j2"], parameters=parameters) if any(parameters.values()) else ""
    yield from file_if(facts, text, role="driver", path=PARAMETERS_CONF)
    if text:
        yield LoadedParameters(parameters=parameters)


def _base(case: HostCase, role: str) -> dict[str, Any]:
    """Of a machine that waits for its GPU the initramfs is rebuilt; a driver that is not gpunode's is left alone."""
    driver, spec = case.solution.driver, case.spec
    if not spec.image.load:
        return {"initramfs": True, "reboot": "never"}
    if driver is None or driver.method == "preinstalled":
        return reboots(spec)
    return {"initramfs": True, "services": [], **reboots(spec)}


def disruption(case: HostCase, mine: Sequence[Item]) -> str:
    """Nothing can use the GPU while a driver that is loaded, or nouveau, is exchanged; the node may have to reboot."""
    return "; ".join(filter(None, (_exchange(case, mine), _after_reboot(case, mine))))


def _after_reboot(case: HostCase, mine: Sequence[Item]) -> str:
    due = [item.name for item in case.ending(mine, "boot")]
    if not due:
        return ""
    words = "the node reboots" if case.spec.reboot != "never" else "and reboot is never: after the next one"
    return f"{', '.join(due)}: {words}"


def _exchange(case: HostCase, mine: Sequence[Item]) -> str:
    if not case.spec.image.load:
        return ""
    reboot = "" if case.spec.reboot == "never" else ", or the node reboots"
    if case.facts.driver.loaded and (case.ending(mine, "driver") or _another_driver(case)):
        return f"exchanges the driver {case.facts.driver.loaded}: what uses the GPU has to end{reboot}"
    if any(gpu.driver == "nouveau" for gpu in case.facts.gpus):
        return f"takes the GPU from nouveau: what uses it has to end{reboot}"
    return ""


def _another_driver(case: HostCase) -> bool:
    """Whether packages or a runfile bring another driver than the one that is loaded: of a branch, or the exact one."""
    driver, loaded, asked = case.solution.driver, case.facts.driver.loaded, case.spec.driver.version
    if driver is None or driver.method not in ("packages", "runfile"):
        return False
    return asked != loaded if asked else loaded.partition(".")[0] != str(driver.branch)


ACTIVATION = replace(activation_step, base=_base, disrupts=disruption)
