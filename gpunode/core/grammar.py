"""Grammars of what nodes name: kernels, packages, units, paths, devices; each with the source of its rule.

A node is not trusted.  What it names becomes a value of a playbook, a word of a request or a part of a URL only where
the whole text fits the grammar of such names; core/facts/vet.py and core/undo/journal.py see to that.
"""

from __future__ import annotations

import re
from functools import cached_property

from gpunode.core.late import dataclass
from gpunode.core.printable import UNSAFE


@dataclass(frozen=True)
class Grammar:
    """What a text has to be as a whole; "" always fits: it says that nothing is known."""

    what: str
    pattern: str
    limit: int
    source: str

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def fits(self, text: str) -> bool:
        return not text or (len(text) <= self.limit and self._compiled.fullmatch(text) is not None)


@dataclass(frozen=True)
class Prose:
    """Any text, of at most so many characters, that is only shown or searched."""

    limit: int


LINE, ARGUMENT = Prose(1_000), Prose(4_096)

_SYSTEMD_UNIT = "https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html"
_OS_RELEASE = "https://www.freedesktop.org/software/systemd/man/latest/os-release.html"
_CDI = "https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md"
_LINUX = "https://github.com/torvalds/linux/blob/master/include"

KERNEL = Grammar("kernel release", r"[A-Za-z0-9][A-Za-z0-9._+~-]*", 64, f"{_LINUX}/uapi/linux/utsname.h")
ARCH = Grammar("architecture", r"[a-z0-9][a-z0-9_]*", 64, f"{_LINUX}/uapi/linux/utsname.h")
# (none): of a machine whose name nobody has set
HOST = Grammar("host name", r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*)|\(none\)", 253, "hostname(7), RFC 1123")
# also users of a directory: DOMAIN\user, user@domain
USER = Grammar("user name", r"\w[\w.@\\+$-]*", 256, "useradd(8), sssd(8)")
OWNER = Grammar("owner and group", r"\w[\w.@\\+$-]*:\w[\w.@\\+$-]*", 512, "stat(1)")
UUID = Grammar("UUID", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", 36, "random(4)")
DISTRO = Grammar("distribution id", r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._-]*", 64, _OS_RELEASE)
RELEASE = Grammar("distribution version", r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._+~/-]*", 64, _OS_RELEASE)
CODENAME = Grammar("codename", r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9 ._+~/()-]*", 64, _OS_RELEASE)
WORD = Grammar("word", r"[A-Za-z0-9][A-Za-z0-9_.-]*", 64, "systemctl(1), systemd-detect-virt(1), dkms(8)")
WORD_OR_DASH = Grammar("word", r"-|[A-Za-z0-9][A-Za-z0-9_.-]*", 64, "docs/uninstall.md")
STATE = Grammar("state", r"[A-Za-z0-9][A-Za-z0-9 ._/()!-]*", 64, "nvidia-smi(1)")
PACKAGE = Grammar("package name", r"[A-Za-z0-9_][A-Za-z0-9@._+~^:-]*", 255, "deb-control(5), rpm-spec(7), PKGBUILD(5)")
PACKAGE_ARCH = Grammar("architecture of a package", r"[A-Za-z0-9][A-Za-z0-9_-]*|\(none\)", 64, "dpkg-architecture(1)")
VERSION = Grammar(
    "version", r"[A-Za-z0-9][A-Za-z0-9._+~^:-]*", 255, "deb-version(7), rpm-version(7), PKGBUILD(5), semver.org"
)
CUDA = Grammar("CUDA version", r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}", 14, "nvcc(1)")
# none that begins with a dash, which systemctl would read as an option
UNIT = Grammar("unit name", r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*", 255, _SYSTEMD_UNIT)
MODULE = Grammar("kernel module or parameter", r"[A-Za-z0-9_][A-Za-z0-9_-]*", 64, f"{_LINUX}/linux/moduleparam.h")
PARAMETER = Grammar("value of a module parameter", r"[A-Za-z0-9_.,:;=/+-]+", 255, "modprobe.d(5)")
# no two separators together: swapped, as sysctl.d(5) says, dots would leave /proc/sys
SYSCTL = Grammar("sysctl key", r"[A-Za-z0-9_][A-Za-z0-9_:@-]*(?:[./][A-Za-z0-9_:@-]+)*", 255, "sysctl.d(5)")
ARGUMENT_WORD = Grammar("kernel argument", r"[a-z][A-Za-z0-9_.]*=[A-Za-z0-9_.,:-]*", 255, "bootparam(7)")
SETTING = Grammar("sysctl value", r"[A-Za-z0-9_./:,+-]+(?: [A-Za-z0-9_./:,+-]+)*", 255, "sysctl(8)")
# references to secrets fit, too
URL = Grammar("URL", r"https?://[^\s\"'`$\\]+", 4096, "RFC 3986")
PROXY = Grammar("URL of a proxy", r"https?://[^\s\"]+", 4096, "RFC 3986")
IMAGE = Grammar(
    "image of a container", r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", 4096, "https://github.com/distribution/reference"
)
# printable, without backslash and braces
PATH = Grammar("path", rf"[^\\{{}}\t\n{UNSAFE}]+", 4096, "path_resolution(7)")
SOCKET = Grammar("path or URL of a socket", r"[A-Za-z0-9/@][A-Za-z0-9._:/@%+=,~-]*", 4096, "unix(7), RFC 3986")
SLOT = Grammar("PCI slot", r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", 16, "lspci(8)")
PCI_ID = Grammar("PCI id", r"[0-9a-f]{4}:[0-9a-f]{4}", 9, "lspci(8)")
PCI_CLASS = Grammar("PCI class", r"[0-9a-f]{4}", 4, "lspci(8)")
# GPU-…, MIG-…, MIG-GPU-…/1/0, and without a prefix on Tegra boards
GPU = Grammar("UUID of a GPU", r"[A-Za-z0-9][A-Za-z0-9/-]*", 80, "nvidia-smi(1)")
MIG = Grammar("MIG profile", r"[0-9a-z][0-9a-z.+-]*", 32, "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/")
DEVICE = Grammar("device number", r"[0-9]{1,10}:[0-9]{1,10}", 21, "makedev(3)")
CDI_KIND = Grammar("CDI kind", r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*", 255, _CDI)
CDI_DEVICE = Grammar("CDI device", r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", 255, _CDI)
CONTAINER = Grammar(
    "container id", r"[A-Za-z0-9][A-Za-z0-9_.-]*", 255, "https://github.com/opencontainers/runtime-spec"
)
HASH = Grammar("sha256, absent or any", r"[0-9a-f]{64}|absent|any", 64, "docs/uninstall.md")
MARK = Grammar("mark of a package or key", r"(?:manual|key) [A-Za-z0-9_][A-Za-z0-9@._+~^:-]*", 300, "docs/uninstall.md")
# what a unit, module, setting, link, account or alternative is called, and how it is: printable, without braces
NAME = Grammar("name", rf"[^{{}}\t\n{UNSAFE}]+", 4096, "docs/uninstall.md")
VALUE = Grammar("value", rf"[^{{}}\n{UNSAFE}]+", 4096, "docs/uninstall.md")
SHA256 = Grammar("sha256", r"[0-9a-f]{64}", 64, "sha256sum(1)")
NUMBER = Grammar("number", r"[0-9]{1,15}(?:\.[0-9]{1,15})?", 31, "printf(1)")
TIME = Grammar("time", r"[0-9][0-9TZ:.+ -]*", 40, "RFC 3339")
COPY = Grammar("copy of a file", r"[A-Za-z0-9][A-Za-z0-9-]*/[0-9]+\.(?:old|new)", 100, "docs/uninstall.md")
RECORD = Grammar("id of a journal's record", r"[A-Za-z0-9][A-Za-z0-9._:-]*", 100, "docs/uninstall.md")
