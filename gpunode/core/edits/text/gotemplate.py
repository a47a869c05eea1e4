"""TOML with Go's {{ actions }}: read and edited as TOML, every action kept as it stands.

A template is no TOML.  So each action gets a substitute that is: a line that an action takes up becomes a comment, an
action in a string a word, an action that is a value a string, or true where the key takes a boolean.  What is edited
then, is edited as TOML, and the actions come back afterwards.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass

from gpunode.core.edits.target import Refusal

_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_BLOCK = re.compile(r"\{\{-?\s*(if|range|with|define|block|else|end)\b([^}]*)")
_TRUE = ".NodeConfig.AgentConfig.Snapshotter"  # a condition that always holds: k3s has a snapshotter by default
_PAIR = re.compile(r"(\s*[^\s={#\[][^={]*=[ \t]*)(.*)\Z")
_BASE = re.compile(r"\{\{-?\s*template\s+[\"`]base[\"`]\s+\.\s*-?\}\}")
_REMOVED = re.compile(r"^[ \t]*#@bool\d+@\r?\n", re.MULTILINE)  # the substitute's comment where its key went
_SUBSTITUTE = re.compile(r"#@line(\d+)@|\"@value(\d+)@\"|true #@bool(\d+)@|@word(\d+)@|\"@field(\.\w+)@\"")
# keys of the CRI plugin whose values are read as booleans
_BOOLEAN = re.compile(
    r"(?:systemd_?cgroup|enable_\w+|disable_\w+|privileged_without\w+|use_local_image_pull)\Z", re.IGNORECASE
)


@dataclass(frozen=True)
class Template:
    """A template's text, the same with substitutes, and what they are for."""

    text: str
    toml: str
    actions: tuple[str, ...]

    @property
    def base(self) -> bool:
        """Whether it has the distribution's own template rendered: {{ template "base" . }}."""
        return bool(_BASE.search(_uncommented(self.text)))

    def uses(self, field: str) -> bool:
        """Whether an action names this field of the template's data, such as .ExtraRuntimes."""
        text = _uncommented(self.text)
        actions = _ACTION.findall(text, 0, text.rfind("}}") + 2)  # an open one would be searched for to the end
        return any(re.search(rf"{re.escape(field)}\b", action) for action in actions)

    def edited(self, toml: str) -> str:
        """The template that an edit of `self.toml` stands for; Refusal where the edit lies in a conditional part."""
        after = _SUBSTITUTE.sub(self._action, _REMOVED.sub("", toml))
        depths = _depths(self.text)
        before = self.text.splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, before, after.splitlines(keepends=True), autojunk=False)
        for tag, i1, i2, _, _ in matcher.get_opcodes():
            if tag == "equal":
                continue
            if any(depths[i] for i in range(i1, max(i2, i1 + 1))):
                raise Refusal(
                    f"line {i1 + 1} of the template would change, and is rendered under a condition ({{{{ if … }}}})",
                    "make that part of the template unconditional, or edit it by hand",
                )
            if i1 and before[i1 - 1].rstrip().endswith("-}}"):
                raise Refusal(
                    f"line {i1} of the template ends in -}}}}, which would join what is written behind it",
                    "end that line in }} or add an empty line of text behind it, then run again",
                )
        return after

    def _action(self, found: re.Match[str]) -> str:
        if found[5]:
            return f"{{{{ {found[5]} }}}}"
        return self.actions[int(next(filter(None, found.groups())))]


def read(text: str) -> Template:
    """A template with its substitutes."""
    actions: list[str] = []
    lines, inside = [], False
    for line in text.splitlines(keepends=True):
        whole = inside or line.count("{{") > line.count("}}")  # an action over several lines
        lines.append(_comment(line, actions) if whole else _line(line, actions))
        inside = (inside or whole) and "}}" not in line
    depths = _depths(text)
    if inside or min(depths) < 0 or depths[-1]:
        raise Refusal(
            "the template has an action without its end: {{ without }}, or {{ if }} without {{ end }}",
            "fix the template: it cannot be rendered either",
        )
    return Template(text, "".join(lines), tuple(actions))


def field(name: str) -> str:
    """What to set a key to so that the template has an action there: .SystemdCgroup → {{ .SystemdCgroup }}."""
    return f"@field{name}@"


def _uncommented(text: str) -> str:
    """Without {{/* comments */}}.  A # in front of an action does not keep it from being executed."""
    return re.sub(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", "", text, flags=re.DOTALL)


def _line(line: str, actions: list[str]) -> str:
    if "{{" not in line:
        return line
    body = line.rstrip("\r\n")
    end = line[len(body) :]
    if pair := _PAIR.match(body):
        words = _words(pair[2], actions)
        if not _is_toml(f"x = {words}"):
            actions.append(pair[2])
            boolean = _BOOLEAN.search(pair[1].rstrip(" \t=").strip("\"'"))
            words = f"true #@bool{len(actions) - 1}@" if boolean else f'"@value{len(actions) - 1}@"'
        return f"{pair[1]}{words}{end}"
    words = _words(body, actions)
    if body.lstrip().startswith("[") and _is_toml(words):
        return words + end
    return _comment(line, actions)


def _comment(line: str, actions: list[str]) -> str:
    body = line.rstrip("\r\n")
    actions.append(body)
    return f"#@line{len(actions) - 1}@{line[len(body) :]}"


def _words(text: str, actions: list[str]) -> str:
    def word(found: re.Match[str]) -> str:
        actions.append(found[0])
        return f"@word{len(actions) - 1}@"

    end = text.rfind("}}") + 2
    return _ACTION.sub(word, text[:end]) + text[end:]


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return False
    return True


def _depths(text: str) -> list[int]:
    """How many conditions and loops are open where each line begins, and one more for the end; -1 past an odd end."""
    depths, blocks = [], list[int]()
    for line in text.splitlines():
        depths.append(sum(blocks))
        for word, rest in _BLOCK.findall(line):
            if word == "end" and not blocks:
                return [-1]
            if word in ("else", "end"):
                blocks.pop() if blocks else None
            if word != "end":
                blocks.append(0 if word == "if" and rest.strip(" -") == _TRUE else 1)
    return [*depths, len(blocks)]
