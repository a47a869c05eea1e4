"""doctor: logs from files, from standard input and from hosts."""

from __future__ import annotations

import gzip
import lzma
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpunode.core.doctor import Diagnosis, Faults, diagnose, scan
from gpunode.core.doctor.checks import parse_checks
from gpunode.core.doctor.codes import parse_reports
from gpunode.core.doctor.parts import Parts, Piece
from gpunode.core.doctor.read import diagnose_logs, explained
from gpunode.core.doctor.table import LAYERS, Codes, parse_codes, parse_faults, parse_messages
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.late import dataclass, regex
from gpunode.edge.tables import read, table

if TYPE_CHECKING:
    from gpunode.core.model import Check, NodeFacts
    from gpunode.edge.detect import Detected, Targets
    from gpunode.edge.ssh.many import Ran

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Examined:
    """One host, or the logs together: what is wrong, or why nobody can say."""

    host: str
    diagnosis: Diagnosis | None = None
    error: GpunodeError | None = None
    notes: tuple[str, ...] = ()


def smoke_checks(stdout: str, rc: int) -> tuple[Check, ...]:
    """The checks that smoke.sh printed; those that name an error of CUDA, with its cause and fix."""
    from gpunode.core.items import smoke

    checks = smoke.parse_checks(stdout, rc)
    faults = load_faults() if any(check.status == "failed" for check in checks) else None
    return tuple(explained(faults, check) for check in checks) if faults else checks


@cache
def load_faults() -> Faults:
    """The messages of knowledge/faults/messages/, read once a process; what they mean is read when one was found."""
    folder = files("gpunode") / "knowledge" / "faults" / "messages"
    names = [name.removesuffix(".toml") for name in sorted(file.name for file in folder.iterdir())]
    return Faults(
        parse_messages({name: table(f"faults/messages/{name}") for name in names}),
        lambda: parse_faults({layer: table(f"faults/{layer}") for layer in LAYERS}, table("faults/actions")),
        load_codes,
        lambda: read(parse_checks, "faults/checks"),
        read(Parts, "faults/parts"),
        read(parse_reports, "faults/codes"),
    )


@cache
def load_codes() -> Codes:
    """knowledge/xids.toml and sxids.toml; read once a process."""
    return read(parse_codes, "xids", "sxids")


def examine_logs(paths: tuple[Path, ...]) -> Examined:
    """Logs (`-` is standard input; *.gz and *.xz are unpacked) → one diagnosis.  Raises InputError."""
    faults = load_faults()
    return Examined(host="logs", diagnosis=diagnose_logs(faults, _logs(faults.parts, paths)))


def _logs(parts: Parts, paths: Iterable[Path]) -> Iterator[tuple[str, Iterable[Piece]]]:
    """Each log by name, and of an archive (sosreport, must-gather) those of its files that have anything to say."""
    for path in paths:
        if _ARCHIVE.search(path.name):
            with _readable(path), tarfile.open(path, "r|*") as archive:
                for member in archive:
                    part = parts.part(f"archive {member.name}")
                    if part.silent or not member.isfile() or not (stream := archive.extractfile(member)):
                        continue
                    packed = gzip.GzipFile(fileobj=stream) if member.name.endswith(".gz") else stream
                    yield Path(member.name).name, parts.split(_chunks_of(packed), part)  # type: ignore[arg-type]
        else:
            yield "stdin" if path == Path("-") else path.name, parts.split(_chunks(path))


_NO_TEXT = {  # how files begin that are given for logs, file(1)
    b"LPKSHHRH": "journalctl --file FILE prints a journal of systemd as text",
    b"\x28\xb5\x2f\xfd": "unpack it: unzstd",
    b"PK\x03\x04": "unpack it: unzip",
    b"BZh": "unpack it: bunzip2",
    b"\x7fELF": "this is a program",
}
_ARCHIVE = regex(r"\.(tar|tar\.gz|tgz|tar\.xz|txz|tar\.bz2)$")


def examine_hosts(
    targets: Targets,
    on_done: Callable[[Detected], None] = lambda found: None,
    on_examined: Callable[[Examined], None] = lambda one: None,
    read_spec: Callable[[], dict[str, Any]] = dict,
) -> list[Examined]:
    """Probe the hosts, read the ends of their logs, and say of each what is wrong.  Raises InputError.

    `on_done` sees each host that is probed, `on_examined` each result as it comes; `read_spec` is asked about a host
    without a GPU.
    """
    from gpunode.core.remote import program
    from gpunode.edge.detect import detect
    from gpunode.edge.share import in_its_share
    from gpunode.edge.ssh.many import run_many
    from gpunode.node import script

    found = detect(targets, on_done=on_done)
    text = program(script("logs.sh"))
    by_name = {one.host: one for one in found}
    results: dict[str, Examined] = {}

    def examined(one: Detected, text: str, why: str = "") -> None:
        result = in_its_share(one.host, partial(_examine, one, text, why, read_spec))
        results[one.host] = Examined(host=one.host, error=result) if isinstance(result, GpunodeError) else result
        on_examined(results[one.host])

    def done(ran: Ran) -> None:
        examined(by_name[ran.target.name], ran.stdout, f": {ran.error.what}" if ran.error else "")

    for one in found:
        if one.facts is None or one.target is None:
            examined(one, "")
    pairs = [(one.target, text) for one in found if one.target and one.facts]
    run_many(pairs, reach=targets.reach(), on_done=done)
    return [results[one.host] for one in found]


def _examine(one: Detected, text: str, why: str, read_spec: Callable[[], dict[str, Any]]) -> Examined:
    if one.facts is None:
        return Examined(host=one.host, error=one.error)
    allowed = False
    if not one.facts.has_gpu:
        from gpunode.edge.desired import DesiredState

        with suppress(InputError):  # a diagnosis needs no valid gpunode.yml
            allowed = DesiredState(read_spec()).spec(one.spec, host=one.host).verify.without_gpu
    text = "" if why else text
    notes = () if text or not one.target else (f"its logs could not be read{why}",)
    return _examined(one.host, one.facts, text, notes, allowed=allowed)


def _examined(host: str, facts: NodeFacts, text: str, notes: tuple[str, ...], *, allowed: bool = False) -> Examined:
    """`allowed`: that it has no GPU."""
    from gpunode.core.doctor.state import ABSENT_GPU, BROKEN_FILE, excluded, proofs, split_sections, state_faults
    from gpunode.edge.load import load_scheduler_rules

    faults, sections = load_faults(), split_sections(text)
    named = {name: faults.parts.part(f"gpunode log {name}") for name in sections}
    scans = [scan(faults, name, [text], named[name]) for name, text in sections.items() if not named[name].silent]
    docker = facts.runtime("docker")
    programs = {
        "driver": facts.driver.loaded,
        "toolkit": facts.toolkit,
        "docker": docker.version if docker else "",
        "kubernetes": facts.kubernetes.kubelet,
    }
    for one in scans:
        one.versions = programs
    state = state_faults(facts, sections, load_scheduler_rules(), faults.checks)
    out = excluded(facts, faults.checks)
    if allowed:
        state.pop(ABSENT_GPU, None)
        out.add(ABSENT_GPU)
    if docker and BROKEN_FILE in state:  # of dockerd's own word, what its messages show
        names = [*scan(faults, "", [docker.effective_error]).found()] or [BROKEN_FILE]
        state |= dict.fromkeys(names, state.pop(BROKEN_FILE))
    active = {name for name, service in facts.services.items() if service.active == "active"}
    lines: dict[str, list[str]] = {}
    for name, seen in (found for one in scans for found in one.found().items()):
        lines.setdefault(name, []).extend(line.text for line in seen.evidence)
    proven = proofs(facts, lines)
    diagnosis = diagnose(faults, scans, state, active=active, proven=proven, excluded=out)
    return Examined(host=host, diagnosis=diagnosis, notes=notes)


def _chunks(path: Path) -> Iterator[str]:
    """The text of a log in chunks of whole lines."""
    with _readable(path), _opened(path) as stream:
        yield from _chunks_of(stream)


def _chunks_of(stream: IO[bytes]) -> Iterator[str]:
    rest: list[bytes] = []
    while block := stream.read(CHUNK):
        odd = (head := block[:4096]).decode(errors="replace").count("\ufffd") > len(head) // 4
        found = ("this is no UTF-8: name the log itself",) * odd  # a log of another charset is mostly ASCII
        if not rest and (found := tuple(hint for magic, hint in _NO_TEXT.items() if block.startswith(magic)) + found):
            raise InputError(f"log {stream.name} is no text", expected="a log, also as .gz or .xz", fix=found[0])
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield b"".join([*rest, whole, newline]).decode("utf-8", errors="replace")
            rest = []
        rest.append(tail)
    if any(rest):
        yield b"".join(rest).decode("utf-8", errors="replace")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What cannot be read is named."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, zlib.error) as error:
        stated = getattr(error, "strerror", None) or str(error)
        raise InputError(f"log {path}: {stated}", fix="name a readable file, or - for standard input") from error


def _opened(path: Path) -> IO[bytes]:
    if path == Path("-"):
        return sys.stdin.buffer
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")
