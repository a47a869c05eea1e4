"""Hooks of mkdocs: pages that are in no file, and links out of docs/, which a site does not have."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.docs.pages import site_pages

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """With the pages that are made here; `make docs` may have left older ones."""
    for name, text in site_pages(Path(config.docs_dir)).items():
        if (old := files.get_file_from_path(name)) is not None:
            files.remove(old)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Such links as plain code; all others as they are."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"`{target.removeprefix('../')}`" if target.startswith("../") else link[0]

    return LINK.sub(shown, markdown)
