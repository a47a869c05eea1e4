"""A report as Markdown, for a ticket or a summary of a CI job: what is wrong first, and no line per healthy host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpunode.core.printable import printable
from gpunode.core.report.model import Issue, Report, VersionCount
from gpunode.core.report.summary import left_title

_NAMED, _VARIANTS, _HOSTS = 8, 5, 100  # hosts named for a message, messages of an issue, rows of hosts


def markdown_text(report: Report) -> str:
    """GitHub's Markdown."""
    return printable("\n".join(_lines(report)) + "\n")


def _lines(report: Report) -> Iterator[str]:
    states = ", ".join(f"{count} {state}" for state, count in report.states.items()) or "no host"
    yield f"# {_text(report.title)}"
    yield ""
    yield f"{len(report.hosts)} hosts: **{states}**."
    yield f"Made {report.made} by gpunode {report.version} from {_text(report.source)}."
    if report.run:
        run = report.run
        yield f"\nRun {run.name} ({run.verb}): **{run.status}**, {run.started} to {run.ended or '…'}."
    yield from _issues("Problems", report.problems)
    yield from _issues(left_title(report), report.drift)
    yield from _table(
        "Pools",
        ("pool", "hosts", "GPUs", "reached", "accepted", "provisioned", "healthy"),
        [(p.name or "–", p.hosts, p.gpus, p.reached, p.accepted, p.provisioned, p.healthy) for p in report.pools],
    )
    components = list(report.classes[0].versions) if report.classes else []
    yield from _table(
        "Versions",
        ("class", "hosts", *components),
        [(c.kind, c.hosts, *(_versions(c.versions[name]) for name in components)) for c in report.classes],
    )
    yield from _table(
        "GPUs",
        ("model", "GPUs", "hosts", "not seen", "MIG on", "ECC errors", "Xids"),
        [(g.model or g.id, g.gpus, g.hosts, g.unseen, g.mig, g.ecc_errors, g.xids) for g in report.gpus],
    )
    if report.run:
        yield from _table(
            "Waves",
            ("pool", "wave", "hosts", "done", "failed", "began", "ended"),
            [(w.pool, w.number, w.hosts, w.done, w.failed, w.started, w.ended) for w in report.run.waves],
        )
    bad = [host for host in report.hosts if host.state != "ok"]
    yield from _table(
        "Hosts that are not as they should be",
        ("host", "pool", "state", "what"),
        [(host.name, host.pool, host.state, host.message) for host in bad[:_HOSTS]],
    )
    if len(bad) > _HOSTS:
        yield f"\nAnd {len(bad) - _HOSTS} more: `--format html` has them all."


def _issues(title: str, issues: Sequence[Issue]) -> Iterator[str]:
    rows = []
    for issue in issues:
        for variant in issue.variants[:_VARIANTS]:
            names = ", ".join(variant.hosts[:_NAMED]) + (" …" if len(variant.hosts) > _NAMED else "")
            rows.append((len(variant.hosts), issue.status, f"`{issue.id}`", variant.message, variant.fix, names))
        if len(issue.variants) > _VARIANTS:
            left = sum(len(variant.hosts) for variant in issue.variants[_VARIANTS:])
            rows.append((left, issue.status, f"`{issue.id}`", "other messages", "", ""))
    yield from _table(title, ("hosts", "status", "check", "what", "do next", "on"), rows)


def _versions(counts: Iterable[VersionCount]) -> str:
    """ "580.95 ×7, 575.57 ×1"; without counts where all are alike."""
    found = list(counts)
    if len(found) == 1:
        return found[0].version or "–"
    return ", ".join(f"{count.version or '–'} ×{len(count.hosts)}" for count in found)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n## {title}\n"
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(_text(str(cell)) for cell in row)} |"


def _text(text: str) -> str:
    """One line, with nothing in it that Markdown would take for its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
