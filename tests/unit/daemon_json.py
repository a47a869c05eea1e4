"""The documents of tests/cases/dockerd, with what the dockerd of three versions says of each."""

from __future__ import annotations

from pathlib import Path

VERSIONS = ("26.1.5", "28.5.2", "29.7.2")
_FILE = Path(__file__).parents[1] / "cases" / "dockerd" / "documents.txt"


def documents() -> list[tuple[str, str, bytes]]:
    """(how it stands in the file, one letter for each of VERSIONS, its bytes)."""
    lines = [line.split("\t", 1) for line in _FILE.read_text().splitlines() if not line.startswith("#")]
    return [(text, printed, text.encode().decode("unicode_escape").encode("latin-1")) for printed, text in lines]
