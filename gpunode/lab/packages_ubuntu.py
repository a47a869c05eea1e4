"""Stubs of Ubuntu's own kernels and drivers, made from what Ubuntu's indexes hold.

ubuntu/VERSION.packages is an excerpt of the real Packages files: names, versions and relations as they stand there.
ubuntu/contents.toml says what files stubs of such names have, and which relations they leave out.  A new excerpt:

    python -m gpunode.lab.packages_ubuntu 24.04 http://archive.ubuntu.com/ubuntu >gpunode/lab/ubuntu/24.04.packages
"""

from __future__ import annotations

import lzma
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.late import regex
from gpunode.lab.packages_table import Row

CODENAMES = {"22.04": "jammy", "24.04": "noble", "26.04": "resolute"}
RELATIONS = ("Depends", "Recommends", "Conflicts", "Breaks", "Provides")
FIELDS = ("Package", "Version", "Architecture", "Component", *RELATIONS)
# of what is fetched as it is: with these apt knows a package again
MORE = ("Multi-Arch", "Pre-Depends", "Replaces", "Installed-Size", "Filename", "Size", "SHA256")
FLAVOURS = ("generic", "virtual", "aws", "azure", "nvidia")
BRANCHES = ("580", "595", "615")
REAL = regex(
    r"nvidia-(utils|compute-utils|kernel-common)-\d+-server|nvidia-firmware-\d+-server-.*|libnvidia-(compute|cfg1)-\d+-server"
    r"|(nvidia-(fabricmanager|imex)|libnvidia-nscq)-\d+"
)  # packages of NVIDIA's user space that nodes get as Canonical has them
Stanza = Mapping[str, str]


def stanzas(text: str) -> list[dict[str, str]]:
    """The packages of an index; of each those fields that a stub has."""
    found = [dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", part, re.M)) for part in text.split("\n\n")]
    return [{name: part[name] for name in (*FIELDS, *MORE) if name in part} for part in found if "Package" in part]


# ---------------------------------------------------------------- from an excerpt to the rows of a table


def ubuntu_rows(version: str, excerpt: str, contents: Mapping[str, Any]) -> Iterator[Row]:
    """The stubs of a release; the first kernel of the excerpt is what a new node has."""
    left_out = re.compile("|".join(contents["left-out"]))
    base = re.compile(r"linux-(modules|image)-\d\S+-generic|linux-image-virtual")
    seen: set[str] = set()
    for stanza in stanzas(excerpt):
        name, component = stanza["Package"], stanza["Component"]
        stated, values = _contents(stanza, contents["package"])
        relations = {kind.lower(): _kept(stanza.get(kind, ""), left_out) for kind in RELATIONS}
        shape = re.sub(r"\d+\.\d+\.\d+-\d+", "", name)
        yield Row(
            source="kernels" if component == "main" else "restricted",
            distros=(f"ubuntu:{version}",),
            package={"name": name, "component": component, "summary": name, **stated, **relations},
            values=values,
            version=stanza["Version"],
            first=bool(base.fullmatch(name)) and shape not in seen,
        )
        seen.add(shape)


def _contents(stanza: Stanza, table: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the first pattern of that name says, and the values that its name and relations give."""
    values = {"version": re.split(r"[-+]", stanza["Version"])[0], "unit": "", "dkms": "nvidia-srv", "cc": "gcc"}
    for row in table:
        if match := re.fullmatch(row["pattern"], stanza["Package"]):
            values |= {name: value or "" for name, value in match.groupdict().items()} | {"unit": row.get("unit", "")}
            if driver := re.search(r"nvidia-kernel-common-\S+ \(>= ([0-9.]+)\)", stanza.get("Depends", "")):
                values["version"] = driver[1]
            return {key: value for key, value in row.items() if key != "pattern"}, values
    return {}, values


def _kept(relations: str, left_out: re.Pattern[str]) -> list[str]:
    """The relations without those alternatives that a stub leaves out."""
    found = []
    for relation in filter(None, (part.strip() for part in relations.split(","))):
        choices = [choice for choice in relation.split(" | ") if not left_out.fullmatch(choice.split()[0])]
        if choices:
            found.append(" | ".join(choices))
    return found


# ---------------------------------------------------------------- from the archive to an excerpt


def read_index(archive: str, codename: str) -> dict[str, dict[str, str]]:
    """The newest of each package of the release, with the component that it is in."""
    found: dict[str, dict[str, str]] = {}
    for suite in (codename, f"{codename}-security", f"{codename}-updates"):
        for component in ("main", "restricted", "multiverse"):
            url = f"{archive}/dists/{suite}/{component}/binary-amd64/Packages.xz"
            with urllib.request.urlopen(url) as answer:  # noqa: S310 # the archive that the person names
                text = lzma.decompress(answer.read()).decode()
            found |= {stanza["Package"]: {**stanza, "Component": component} for stanza in stanzas(text)}
    return found


def excerpt(archive: str, codename: str) -> str:
    """The stanzas of an excerpt, oldest kernel first: of each flavour the newest kernel, of generic the one before.

    The last is one whose signed modules the newest driver does not take.
    """
    index = read_index(archive, codename)
    chosen: dict[str, dict[str, str]] = {}

    def take(pattern: str, change: tuple[str, str] = ("", "")) -> None:
        for name in sorted(index):
            if re.fullmatch(pattern, name):
                # the metapackage of a kernel before, as the archive had it then
                text = {key: value.replace(*change) if change[0] else value for key, value in index[name].items()}
                chosen[f"{name} {text['Version']}"] = text

    newest = {f: _kernel_of(index, f) for f in FLAVOURS}
    before = _kernel_before(index, newest["generic"])
    number = tuple(release.removesuffix("-generic").rpartition("-")[2] for release in (newest["generic"], before))
    for kernel in (before, *newest.values(), *_kernel_of_old(index, newest["generic"])):
        drivers = rf"modules-nvidia-({'|'.join(BRANCHES)})-server(-open)?"
        take(rf"linux-(image|modules|modules-extra|headers|{drivers})-{re.escape(kernel)}")
        take(re.escape(index[f"linux-headers-{kernel}"]["Depends"].partition(",")[0]))
    for flavour in FLAVOURS:
        metas = rf"linux-(image-|headers-|modules-nvidia-({'|'.join(BRANCHES)})-server(-open)?-|){flavour}"
        if flavour in ("generic", "virtual"):
            take(metas, (number[0], number[1]))
        take(metas)
    names = "driver|dkms|headless-no-dkms|headless|utils|compute-utils|kernel-common|kernel-source|fabricmanager|imex"
    for branch in BRANCHES:
        take(rf"nvidia-({names})-{branch}(-server)?(-open)?")
        take(rf"libnvidia-(compute|cfg1|nscq)-{branch}(-server)?")
    for stanza in [*chosen.values()]:
        take("|".join(re.findall(r"nvidia-firmware-[a-z0-9.-]+", stanza.get("Depends", ""))) or "-")
    fields = (
        f"{name}: {stanza[name]}\n"
        for stanza in chosen.values()
        for name in (*FIELDS, *(MORE if REAL.fullmatch(stanza["Package"]) else ()))
        if name in stanza
    )
    return "".join(f"\n{field}" if field.startswith("Package: ") else field for field in fields).lstrip()


def _kernel_of(index: Mapping[str, Stanza], flavour: str) -> str:
    """The newest kernel of a flavour, which its metapackage names."""
    [release] = re.findall(r"linux-image-(\d\S+?)(?:,|$)", index[f"linux-image-{flavour}"]["Depends"])
    return str(release)


def _kernel_before(index: Mapping[str, Stanza], newest: str) -> str:
    """The kernel before, of the same line."""
    line, _, rest = newest.partition("-")
    flavour = rest.partition("-")[2]
    numbers = (re.fullmatch(rf"linux-image-{re.escape(line)}-(\d+)-{flavour}", name) for name in index)
    *_, before, _ = sorted(int(match[1]) for match in numbers if match)
    return f"{line}-{before}-{flavour}"


def _kernel_of_old(index: Mapping[str, Stanza], newest: str) -> list[str]:
    """The newest kernel of that line and flavour whose signed modules are of a driver that the archive has no more."""
    start, _, flavour = newest.rpartition("-")
    pattern = re.compile(
        rf"linux-modules-nvidia-595-server-open-({re.escape(start.rpartition('-')[0])}-(\d+)-{flavour})"
    )
    version = re.split(r"[-+]", index["nvidia-kernel-common-595-server"]["Version"])[0]
    old = [
        (int(match[2]), match[1])
        for name, stanza in index.items()
        if (match := pattern.fullmatch(name)) and f"(<= {version}-" not in stanza.get("Depends", "")
    ]
    return [release for _, release in sorted(old)[-1:]]


if __name__ == "__main__":
    sys.stdout.write(excerpt(sys.argv[2], CODENAMES[sys.argv[1]]))
