"""What programs answer when they are asked, and call no fault: dkms status, kubectl describe node."""

from __future__ import annotations

import re
from collections.abc import Iterator

Told = tuple[int, str, str]  # where it stands in the text, fault, what shows it

_DKMS = re.compile(
    r"^nvidia(?:-\w{1,20})?[/,] ?[\d.]{3,20}(?:, [^,\s:]{1,80}, \w{1,10})?: (added|built|installed)\b.*$", re.M
)
_BOX = re.compile(r"^(Capacity|Allocatable):\n((?:  \S{1,100}: {1,60}\S{1,40}\n){1,60})", re.M)
_GPUS = re.compile(r"^\W{0,8}nvidia\.com/(gpu|mig-\S{1,40}|gpu\.shared): {1,60}(\d{1,5})$", re.M)


def told(text: str) -> Iterator[Told]:
    """The faults that answers in the text show; what has none of their words costs nothing."""
    if ": added" in text or ": built" in text:
        yield from _modules(text)
    if "nvidia.com/gpu: " in text:
        yield from _nodes(text)


def _modules(text: str) -> Iterator[Told]:
    rows = list(_DKMS.finditer(text))
    if not any(row[1] == "installed" for row in rows):
        yield from ((row.start(), "dkms-bad-exit", row[0]) for row in rows)


def _nodes(text: str) -> Iterator[Told]:
    """Of a node's GPUs none, or fewer than it has, can be allocated; by the whole answer, or by grep's part of it."""
    there: dict[str, int] = {}
    boxes = list(_BOX.finditer(text))
    for box in boxes:
        gpus = {row[1]: int(row[2]) for row in _GPUS.finditer(box[2])}
        count, shared = gpus.pop("gpu", None), any(gpus.values())
        if box[1] == "Capacity":
            there = {"gpu": count or 0}
        elif count is not None and not shared and count <= (whole := there.get("gpu", 0)):
            name = "plugin-no-devices" if not count else "dp-xid-unhealthy" if count < whole else ""
            if name:
                yield box.start(), name, f"allocatable: nvidia.com/gpu {count} of {whole}"
    rows = [] if boxes else list(_GPUS.finditer(text))
    if rows and not any(int(row[2]) for row in rows):
        yield rows[0].start(), "plugin-no-devices", rows[0][0].strip()
