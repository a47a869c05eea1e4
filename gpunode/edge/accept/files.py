"""The folder of an acceptance: what is finished in it, records and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from gpunode.core.accept.result import AcceptRecord, StageRow, row_from
from gpunode.core.errors import InputError
from gpunode.core.printable import json_text
from gpunode.core.report.model import Report
from gpunode.edge.records import RECORDS, known_folder
from gpunode.edge.state import append_private, json_lines, run_name, state_dir, write_private, writing_to

ROWS = "rows.jsonl"


def acceptance_folder(resume: str) -> Path:
    """The folder of this acceptance: a new one, or that of the one that goes on."""
    root = state_dir() / "accept"
    if not resume:
        folder = root / run_name()
        root.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        return folder
    return known_folder(resume)


def append_row(folder: Path, row: StageRow) -> None:
    """On disk before the next stage starts."""
    with append_private(folder / ROWS) as file:
        file.write(f"{json_text(asdict(row))}\n")


def finished_rows(folder: Path, keys: Mapping[str, str]) -> dict[tuple[str, str], StageRow]:
    """What is finished on machines that are still what they were."""
    rows: dict[tuple[str, str], StageRow] = {}
    for line in json_lines(folder / ROWS):
        try:
            row = row_from(line)
        except (ValueError, RecursionError, InputError):
            continue
        if row.key == keys.get(row.host):
            rows[row.host, row.stage] = row
    return {key: row for key, row in rows.items() if row.ended == "done"}


def write_record(folder: Path, record: AcceptRecord) -> Path:
    """The record of one host, to be signed or compared with later."""
    (folder / RECORDS).mkdir(mode=0o700, exist_ok=True)
    path = folder / RECORDS / f"{record.host.replace('/', '_')}.json"
    write_private(path, json_text(asdict(record), indent=2) + "\n")
    return path


def write_reports(folder: Path, report: Report, output: Path | None) -> list[Path]:
    """The report in all its forms beside the records; also in the folder `output`.  Raises InputError."""
    from gpunode.core.report.html import html_text
    from gpunode.core.report.junit import junit_text
    from gpunode.core.report.schema import report_data
    from gpunode.edge.report import load_page

    texts = {
        "report.html": html_text(report, load_page()),
        "report.json": json_text(report_data(report), indent=2) + "\n",
        "junit.xml": junit_text(report),
    }
    for name, text in texts.items():
        write_private(folder / name, text)
    if output is None:
        return [folder]
    with writing_to(output, "choose another folder"):
        for path in (path for path in folder.rglob("*") if path.is_file()):
            copy = output / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return [folder, output]
