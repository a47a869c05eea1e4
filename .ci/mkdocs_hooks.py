"""Hooks of mkdocs: a link that leaves docs/ names a file of the repository, which a site does not have."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Such links as plain code; all others as they are."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"`{target.removeprefix('../')}`" if target.startswith("../") else link[0]

    return LINK.sub(shown, markdown)
