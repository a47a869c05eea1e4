"""What `kubectl describe` prints of an object's own words: labels, scripts, arguments and volumes tell of no fault."""

from __future__ import annotations

import re

from gpunode.core.late import regex

_OBJECT = regex(r"^Name: {2,20}\S", re.M)
# a field with the lines that are indented below it; the data of a ConfigMap, up to what follows it
_WORDS = regex(
    r"^(?:Labels|Annotations|Volumes|Tolerations|Node-Selectors|Volume Claims):.*\n(?:[ ].*\n)*"
    r"|^( {2,8})(?:Command|Args|Environment(?: Variables from)?|Mounts|Liveness|Readiness|Startup):.*\n(?:\1 +.*\n)*"
    r"|^Data\n====\n(?s:.*?)(?=^BinaryData\n====|^Events:|\Z)",
    re.M,
)


def without_words(text: str) -> str:
    """The text with as many lines, those of an object's own words empty."""
    if "\nName: " not in f"\n{text}" or not (first := _OBJECT.search(text)):
        return text
    head, rest = text[: first.start()], text[first.start() :]
    return head + _WORDS.sub(lambda words: "\n" * words[0].count("\n"), rest)
