"""Rules for files that no linter knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
HIDDEN_FOLDERS = frozenset({".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"})


def project_files() -> list[Path]:
    """The tracked files; outside of a git clone (an unpacked sdist) all but caches."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        found = [p for p in ROOT.rglob("*") if not HIDDEN_FOLDERS & set(p.relative_to(ROOT).parts)]
    return [p for p in found if p.is_file() and not p.is_symlink()]


def text_of(path: Path) -> str | None:
    """The file as text, or None when it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data[:8000] else data.decode(errors="replace")


# Where a build happened is nobody's business: absolute paths of a workplace, private registries, agents' words.
# Written in pieces, so that this file does not find itself.
LEAKS = re.compile(
    "|".join(
        [
            r"(?<![\w.-])/work" r"/",
            r"/root/\.py" r"env",
            r"/opt/(?:py" r"pi|whe" r"els)",
            r"(?i:\bsub-?ag" r"ents?\b|\bartifact" r"ory\b|\bnexus/repos" r"itory\b)",
            r"(?i:\bcla" r"ude\b|\banthro" r"pic\b)",
        ]
    )
)


def test_no_file_tells_of_the_place_where_it_was_written() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{n}: {line.strip()[:100]}"
        for path in project_files()
        for n, line in enumerate((text_of(path) or "").splitlines(), 1)
        if LEAKS.search(line)
    ]
    assert found == []


PRIVATE_URL = re.compile(r"https?://(?:[\w-]+\.)+(?:internal|corp|intranet)\b")


def test_no_url_names_a_private_host() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in project_files()
        for hit in PRIVATE_URL.finditer(text_of(path) or "")
    ]
    assert found == []


def test_shell_scripts_are_posix_and_say_what_they_do() -> None:
    """A script starts with #!/bin/sh and a comment; a part that is sent within another program with the comment."""
    wrong = []
    for path in project_files():
        lines = [*(text_of(path) or "").splitlines(), "", ""]
        comment = lines[1] if lines[0] == "#!/bin/sh" else lines[0]
        if path.suffix == ".sh" and not comment.startswith("# "):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
