"""Files of repositories (yum, dnf, zypper): what they set up, the same text with one enabled; and apt's preferences."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Mapping

from gpunode.core.late import dataclass, regex
from gpunode.core.model import ConfigFile
from gpunode.core.numbers import whole

FOLDERS = ("/etc/yum.repos.d/", "/etc/zypp/repos.d/")
_SECTION = regex(r"\[([^\]\n]+)\]\s*")
_ENABLED = regex(r"(enabled\s*=\s*)(\S*)(\s*)", re.IGNORECASE)
_OFF = ("0", "no", "false", "off")
_SECRET = regex(r"(?im)^[ \t]*(username|password|proxy_username|proxy_password)[ \t]*=[ \t]*\S|://[^/\s@]+@")


@dataclass(frozen=True, kw_only=True)
class RepoSection:
    """One repository of a file: whether it is on, and the lines of the text that switch it, by number."""

    id: str
    enabled: bool
    switches: tuple[int, ...] = ()


def sections(text: str) -> tuple[RepoSection, ...]:
    """The repositories that a file sets up.  Of two lines for one option the last counts; without one it is on.

    >>> sections("[crb]\\nname=CRB\\nenabled=0\\n")
    (RepoSection(id='crb', enabled=False, switches=(2,)),)
    """
    found: list[RepoSection] = []
    for number, line in enumerate(text.split("\n")):
        section, switch = _SECTION.fullmatch(line), _ENABLED.fullmatch(line)
        if section:
            found.append(RepoSection(id=section[1], enabled=True))
        elif switch and found:
            last = found.pop()
            on = switch[2].lower() not in _OFF
            found.append(RepoSection(id=last.id, enabled=on, switches=(*last.switches, number)))
    return tuple(found)


def with_enabled(text: str, wanted: str) -> str:
    """The text with that repository on; everything else of it stays byte by byte.

    >>> with_enabled("[crb]\\nenabled = 0\\n[epel]\\nenabled=0\\n", "crb")
    '[crb]\\nenabled = 1\\n[epel]\\nenabled=0\\n'
    """
    lines = text.split("\n")
    for section in sections(text):
        if same(section.id, wanted) and not section.enabled:
            for number in section.switches:
                lines[number] = _ENABLED.sub(r"\g<1>1\g<3>", lines[number])
    return "\n".join(lines)


def same(one: str, other: str) -> bool:
    """Whether two ids mean one repository: PowerTools of older releases is powertools of later ones."""
    return one.lower() == other.lower()


def has_secret(text: str) -> bool:
    """Whether a password or a user stands in the file."""
    return bool(_SECRET.search(text))


def repo_files(files: Mapping[str, ConfigFile]) -> Iterator[tuple[ConfigFile, str]]:
    """The files of repositories among those that the probe has sent, each with its text; UTF-8 alone."""
    for path, file in files.items():
        if path.startswith(FOLDERS) and path.endswith(".repo") and file.data is not None:
            with contextlib.suppress(UnicodeDecodeError):
                yield file, file.data.decode()


def enabled_repositories(files: Mapping[str, ConfigFile]) -> tuple[str, ...]:
    """The ids of those that are on, of the files that the probe has sent."""
    return tuple(section.id for _, text in repo_files(files) for section in sections(text) if section.enabled)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A rule of apt's preferences (apt_preferences(5)) above 1000, for which apt also downgrades what is installed."""

    path: str
    packages: tuple[str, ...]  # names, patterns of a shell, or /regular expressions/
    to: str  # origin, release or version
    priority: int

    def covers(self, name: str, version: str) -> bool:
        """Whether it is about that package, and does not name the very version that is asked for."""
        if self.to.startswith("version ") and version and fnmatch.fnmatchcase(version, self.to.split()[1]):
            return False
        return any(one.startswith("/") or fnmatch.fnmatchcase(name, one.partition(":")[0]) for one in self.packages)


_PREFERENCES = regex(r"/etc/apt/preferences(\.d/(?!gpunode-)([^.]+|.*\.pref))?")
_FIELD = regex(r"(?im)^(package|pin|pin-priority):[ \t]*((?:.*)(?:\n[ \t].*)*)$")


def strong_pins(files: Mapping[str, ConfigFile]) -> tuple[Pin, ...]:
    """The rules above 1000 in files that gpunode did not write."""
    pins = []
    for path, file in files.items():
        text = (file.data or b"").decode("utf-8", "replace") if _PREFERENCES.fullmatch(path) else ""
        for rule in re.split(r"\n\s*\n", text):
            fields = {key.lower(): " ".join(value.split()) for key, value in _FIELD.findall(rule)}
            priority = whole(fields.get("pin-priority", ""))
            if priority > 1000 and fields.keys() >= {"package", "pin"}:
                names = tuple(fields["package"].split())
                pins.append(Pin(path=path, packages=names, to=fields["pin"], priority=priority))
    return tuple(pins)
