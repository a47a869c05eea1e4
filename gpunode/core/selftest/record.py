"""What a selftest captured on one machine, what came of it, and the redacted archive of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.facts.redact import redact_texts
from gpunode.core.late import dataclass, field, regex
from gpunode.core.model import HostOutcome
from gpunode.core.printable import json_text, printable

Status = Literal["passed", "failed", "not possible"]
META, RESULTS, GUIDE, PROBE = "record.json", "results.json", "README.txt", "probe.txt"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What one program printed, or one file held.  `error` says why nothing came, or why it came to no good end."""

    text: str = ""
    error: str = ""
    stopped: bool = False  # at its time limit
    exit: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SelftestRecord:
    """Captures by the names that they have in the archive, and what is known of the run itself."""

    captures: Mapping[str, Capture] = field(default_factory=dict)
    gpunode: str = ""  # its version
    at: str = ""  # when, 2026-11-23T10:00:00Z
    root: bool = False
    seconds: float = 0.0

    def text(self, name: str) -> str:
        """What was captured under that name, "" where nothing was."""
        return self.captures.get(name, Capture()).text

    def data(self, name: str) -> Any:
        """The JSON that was captured under that name, None where it is none."""
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table at the end; `details` are the differences, one a line."""

    id: str
    status: Status
    message: str
    details: tuple[str, ...] = ()


def outcome_of(results: Sequence[Result], *, gpus: int) -> HostOutcome:
    """failed: a check failed; refused: there is no NVIDIA GPU, so that nothing could be checked; else ok."""
    if any(result.status == "failed" for result in results):
        return "failed"
    return "ok" if gpus else "refused"


def summary(results: Sequence[Result]) -> str:
    """12 passed, 1 failed, 3 not possible here."""
    counts = Counter(result.status for result in results)
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['not possible']} not possible here"


def results_text(results: Sequence[Result]) -> str:
    """The table for people: one line a check, the differences below it."""
    width = max((len(result.id) for result in results), default=0)
    lines = []
    for one in results:
        lines.append(f"{one.status:<12} {one.id:<{width}}  {one.message}")
        lines += [f"{'':<12} {'':<{width}}    {line}" for line in one.details]
    return "\n".join([*lines, summary(results)])


def times_text(record: SelftestRecord) -> str:
    """How long each capture took, the slowest first; what took less than a tenth of a second is left out."""
    slow = sorted(record.captures.items(), key=lambda item: -item[1].seconds)
    shown = [f"{name} {one.seconds:.1f} s" for name, one in slow if one.seconds >= 0.1]
    return f"times: {', '.join(shown)}; all {record.seconds:.0f} s" if shown else f"times: all {record.seconds:.0f} s"


def results_data(record: SelftestRecord, results: Sequence[Result]) -> dict[str, Any]:
    """The shape of `gpunode selftest --format json` (docs/selftest.md)."""
    counts = Counter(result.status for result in results)
    return {
        "format": FORMAT,
        "gpunode": record.gpunode,
        "at": record.at,
        "seconds": round(record.seconds, 1),
        "counts": {"passed": counts["passed"], "failed": counts["failed"], "not_possible": counts["not possible"]},
        "checks": [{"id": r.id, "status": r.status, "message": r.message, "details": list(r.details)} for r in results],
        "times": {name: round(one.seconds, 2) for name, one in sorted(record.captures.items())},
    }


# ---------------------------------------------------------------- the archive

# what names a machine in the output of nvidia-smi, NVML, dmidecode-like tools and /proc
_SERIAL = regex(
    r"(?i)(?:<(?:[a-z_]*serial(?:_number)?|pdi|host_id|gpu_fabric_guid)>|\"(?:[a-z_]*serial|pdi)\": *\""
    r"|\b(?:serial(?: number)?|pdi|guid)[ \t]*:[ \t]*)"
    r"([0-9a-z][0-9a-z-]{4,40})(?![0-9a-z-])"
)
_PROCESS = regex(r"(<process_name>)[^<]*(</process_name>)|(Xid \(PCI:[^)\n]*\)[^\n]*?\bname=)[^,\n]*")
# bytes of files in JSON, in which nothing could be redacted: they are in the probe as well
_ENCODED = regex(r'"(?![0-9a-f]+")[A-Za-z0-9+/]{24,}={0,2}(?:\\n[A-Za-z0-9+/]*={0,2})*"')
# who compiled the module, and where: in /proc/driver/nvidia/version, and in the kernel's log
_BUILDER = regex(r"(NVRM(?: version:|: loading) NVIDIA UNIX[^\n]*\()[^()\n]*(\))")


def redacted(record: SelftestRecord) -> dict[str, str]:
    """The files of the archive: captures without serials, UUIDs, host and user names, addresses and process names.

    The same thing has the same placeholder in all of them, so that they can still be compared.
    """
    meta = {
        "format": FORMAT,
        "gpunode": record.gpunode,
        "at": record.at,
        "root": record.root,
        "seconds": round(record.seconds, 1),
        "captures": {
            name: {"error": one.error, "stopped": one.stopped, "exit": one.exit, "seconds": round(one.seconds, 2)}
            for name, one in sorted(record.captures.items())
        },
    }
    texts = {name: _without_bytes(name, one.text) for name, one in sorted(record.captures.items()) if one.text}
    files = redact_texts({META: json_text(meta, indent=1) + "\n"} | texts, without=_serials(texts))
    return {name: _BUILDER.sub(r"\1builder\2", _PROCESS.sub(_unnamed, text)) for name, text in files.items()}


def _unnamed(match: re.Match[str]) -> str:
    return f"{match[3]}process" if match[3] else f"{match[1]}process{match[2]}"


def _without_bytes(name: str, text: str) -> str:
    """JSON without encoded contents of files: what has a capital, a small letter and a digit, or ends in =."""
    if not name.endswith(".json"):
        return text
    mixed = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))

    def left_out(match: re.Match[str]) -> str:
        encoded = match[0].endswith('="') or all(kind.search(match[0]) for kind in mixed)
        return f'"({len(match[0])} characters left out)"' if encoded else match[0]

    return _ENCODED.sub(left_out, text)


def _serials(texts: Mapping[str, str]) -> frozenset[str]:
    found = (match[1] for text in texts.values() for match in _SERIAL.finditer(text))
    return frozenset(word for word in found if any(c.isdigit() for c in word))


def archive_files(record: SelftestRecord, results: Sequence[Result]) -> dict[str, str]:
    """All files of the archive, the guide first.  The results are those of the redacted record."""
    files = redacted(record)
    table = f"{printable(results_text(results))}\n{times_text(record)}\n"
    data = json_text(results_data(record, results), indent=1) + "\n"
    made = redact_texts({"results.txt": table, RESULTS: data} | files, without=_serials(files))
    made = _once({name: made[name] for name in ("results.txt", RESULTS, *files)})
    return {GUIDE: _guide(made)} | made


def _once(files: Mapping[str, str]) -> dict[str, str]:
    """Without the probes of other shells that printed what /bin/sh did: record.json has the hash of each."""
    probe, meta = files.get(PROBE), json.loads(files[META])
    same = [name for name, text in files.items() if name.startswith("probe-") and text == probe]
    for name in same:
        meta["captures"][name]["sha256"] = _sha256(files[name])
    kept = {name: text for name, text in files.items() if name not in same}
    return kept | {META: json_text(meta, indent=1) + "\n"}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _guide(files: Mapping[str, str]) -> str:
    width = max(map(len, files))
    listed = "\n".join(f"  {name:<{width}}  {_MEANING.get(name, 'output of that command')}" for name in files)
    return (
        "What gpunode selftest saw on one machine, for a report «it works / does not work on my GPU».\n\n"
        "Redacted, by placeholders that are the same in all files: serial numbers, UUIDs of GPUs, MIG devices, boots\n"
        "and clusters, host names, names of users, IP and MAC addresses, names of processes, passwords and tokens.\n"
        "Kept: models, PCI ids and slots, versions, kernel and distribution, names of packages, configuration of the\n"
        "container engines, messages of the kernel about the driver.  Look through the files before you send them.\n\n"
        f"Files:\n{listed}\n"
    )


_MEANING = {
    "results.txt": "the table that was printed",
    RESULTS: "the same as data",
    META: "when, which version, how long and how each command ended",
    PROBE: "what gpunode's probe saw (docs/probe.md)",
    "nvml.json": "what NVML says of each GPU",
    "sysfs.json": "/sys/bus/pci/devices of NVIDIA's functions",
    "proc.txt": "files of /proc/driver/nvidia",
    "dmesg.txt": "lines of the kernel log about NVIDIA's modules",
}


def read_record(files: Mapping[str, str]) -> SelftestRecord:
    """The record of an archive's files; InputError where they are none."""
    try:
        meta = json.loads(files[META])
        if meta["format"] != FORMAT:
            raise InputError(f"a record of format {meta['format']}", expected=f"format {FORMAT}", fix="update gpunode")
        probe = {_sha256(files[PROBE]): files[PROBE]} if PROBE in files else {}
        captures = {
            name: Capture(
                text=probe[one["sha256"]] if "sha256" in one else files.get(name, ""),
                **{k: one[k] for k in ("error", "stopped", "exit", "seconds")},
            )
            for name, one in meta["captures"].items()
        }
        return SelftestRecord(
            captures=captures,
            gpunode=str(meta["gpunode"]),
            at=str(meta["at"]),
            root=bool(meta["root"]),
            seconds=float(meta["seconds"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"no record of a selftest: {type(error).__name__} {error}",
            expected=f"the files of an archive that gpunode selftest wrote, with {META}",
        ) from None


def lines_about_nvidia(log: str) -> list[str]:
    """The lines of a kernel log that are about NVIDIA's modules and GPUs."""
    return [line for line in log.splitlines() if _KERNEL.search(line)]


_KERNEL = regex(r"NVRM|nvidia|nvswitch|nouveau|\bXid\b", re.IGNORECASE)
