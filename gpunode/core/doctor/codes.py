"""Lines of text → codes of the driver: those that programs report, and those that people tell of."""

from __future__ import annotations

import re
from dataclasses import dataclass

# NVRM: Xid (PCI:0000:01:00): 79, …; with MIG (PCI:0000:01:00 GPU-I:05)
XID = re.compile(r"\bXid \((?P<gpu>[^) ]+)[^)]*\): ?(?P<code>\d{1,3})\b", re.IGNORECASE)
_BEFORE = re.compile(r"\bXid \((?P<gpu>[^) ]+)[^)]*\):.* caused by previous Xid (?P<code>\d{1,3})\b", re.IGNORECASE)
_PLUGIN = re.compile(r"XidCriticalError: Xid=(?P<code>\d{1,3}) on *Device=(?P<gpu>[\w-]+)", re.IGNORECASE)
SWITCH = re.compile(r"SXid \(PCI:(?P<gpu>[^)]*)\): (?P<code>\d{4,5})", re.IGNORECASE)
FABRIC = re.compile(  # the fabric manager's log
    r"detected NVSwitch (?:non-)?fatal error (?P<code>\d{5}) on .{0,20}NVSwitch pci bus id (?P<gpu>[0-9a-f:.]+)",
    re.IGNORECASE,
)
REPORTS = (XID, _BEFORE, _PLUGIN, SWITCH, FABRIC)
# newer drivers leave out the code
LOST = re.compile(r"(?:NVRM:.*\bhas |NVRM: |GPU has )fallen off (?:of )?the bus", re.IGNORECASE)

# «Xid error code 79», «XID 错误：79», «Xid-Fehler 79», «GPU Xid errors detected: 79»
_WORD = (
    r"[-_ :]{0,2}(?:errors?|codes?|with code|numbers?|messages?|events?|event\(s\)"
    r"|fehler|エラー|错误码?|報錯|报错|오류|에러|(?:detected|found)(?=:))"
)
_END = r"(?:(?![0-9A-Za-z_])|(?=Error|Warning))"
_UNIT = r"(?! ?(?:x|times?|nodes?|gpus?|cards?|more|others?|hours?|min\w*|days?|%)\b)"
_TOLD = re.compile(
    # «Xids 13, 31 and 43»
    rf"\bXids{_WORD}?[ :(]{{1,2}}(?P<list>\d{{1,3}}(?:(?:, ?(?:and )?| and |/)\d{{1,3}}\b)+)"
    # metrics of DCGM
    r"|XID_ERRORS\{[^}]*\} *(?P<metric>\d{1,3})\b|XID_ERRORS\{[^}]*err_code='(?P<label>\d{1,3})'"
    # conditions of nodes: NVSentinel's, GKE's
    r"|XIDError.{0,200}?ErrorCode\W{1,5}(?P<sentinel>\d{1,3})\b"
    r"|XidCriticalError +True\b.{0,200}\{'(?P<condition>\d{1,3})':true"
    r"|(?P<before>\d{1,3}) ?号 ?Xid|\bSXid(?: errors?)?[ :=]{1,2}(?P<switch>\d{5})\b"
    # «Xid 79», «Xid 48 / 171», «Xid 79 and 154», «NvidiaXID79Error», «'xid': 79»
    rf"|(?:(?<![A-Za-z])|Nvidia)Xids?(?:{_WORD})*(?:[ _=:：#({{*`'-]{{0,3}}| is |为|是)"
    rf"(?P<codes>\d{{1,3}}{_END}(?:/\d{{1,3}}{_END})?(?!/)(?:(?: / | and | & | \+ )\d{{1,3}}{_END}{_UNIT})*)",
    re.IGNORECASE,
)
_PLAN = re.compile(  # a code that is worked on, looked for or explained, not met
    r"\[feature\]|\bignore\b|\bsupport for\b|\bshould be\b|\bsimulat|xid\w* ?== ?\d|\bcase \d+:"
    r"|\b(detect|treat|mark(ed)?|classify|map|ignored?)\b.{0,60} as\b"
    r"|\bgrep( -\w+)* (for )?'?(NVRM: )?Xid \d|\b(watch|look|search|check)( \w+){0,2} for Xid \d"
    r"|^\W*auto[- ]?detect|\b(address(es)?|handles?|catch(es)?) Xid \d|\bcauses (are|include)\b"
    r"|XID\w*\{[^}]*\} *0(\.0)?$|^[-*•] *Xid \d+: [A-Z][a-z]",
    re.IGNORECASE,
)
_STAGED = re.compile(r"\binject|\btrigger(s|ed|ing)? (an? )?Xid", re.IGNORECASE)
_DENIED = re.compile(
    r"(\b(no|not|never|unlike|without|than|such as|like|e\.g\.,?|for example,?|the driver (logs|reports|prints))"
    r"|没有|不是|并非|[会没未]报)( an?| any| the)? ?$",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"\b(logs|logged|has|shows?|prints|printed) no Xids?\b|\(no Xids?\b|\bno Xids? of any kind", re.IGNORECASE
)
_EXPLAINED = re.compile(
    r"( errors?| codes?| ?号?错误)?( (means|indicates|refers to|stands for|is (logged|raised|emitted) (when|if|by))"
    r"|是指|是由|是通用|表示|意味着|:? ?此事件)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """Codes that a line tells of; unmet: it says that somebody brings them about; none: it says that there is none."""

    codes: tuple[int, ...] = ()
    unmet: tuple[int, ...] = ()
    none: bool = False


def read_told(text: str) -> Told:
    """A line, its quotation marks all ' → codes of GPUs and of NVSwitches, whether there are such or not."""
    codes = [
        int(code)
        for match in _TOLD.finditer(text)
        if not _DENIED.search(text, 0, match.start()) and not _EXPLAINED.match(text, match.end())
        for code in re.findall(r"\d+", next(filter(None, match.groups())))
    ]
    if _STAGED.search(text):
        return Told(unmet=tuple(codes))
    if _PLAN.search(text):
        return Told()
    lost = LOST.search(text) and not _EXPLAINED.search(text)
    return Told(codes=(*codes, *[79] * bool(lost)), none=bool(_NONE.search(text)))
