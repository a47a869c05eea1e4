"""A report as JUnit XML, the form that CI servers read: a suite for each host, a case for each finding."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as Tree

from gpunode.core.late import regex
from gpunode.core.printable import printable
from gpunode.core.report.model import Report, ReportFinding, ReportHost, Status, between

# A case has failed when a check has, or something is left to do; it is an error when nobody could look.
_ELEMENTS: Mapping[Status, str] = {
    "failed": "failure",
    "pending": "failure",
    "refused": "failure",
    "unreachable": "error",
    "not-proven": "skipped",
    "skipped": "skipped",
}
_NOT_XML = regex("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(report: Report) -> str:
    """The XML with its declaration, in what Ant, Maven's Surefire and Jenkins write and read alike."""
    suites = [_suite(host, report) for host in report.hosts]
    totals = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors")}
    root = Tree.Element("testsuites", {"name": _clean(report.title)} | {name: str(n) for name, n in totals.items()})
    root.extend(suites)
    Tree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Tree.tostring(root, encoding="unicode")}\n'


def _suite(host: ReportHost, report: Report) -> Tree.Element:
    cases = [_case(finding, host.name) for finding in _cases(host)]
    counts = {element: sum(case.find(element) is not None for case in cases) for element in set(_ELEMENTS.values())}
    suite = Tree.Element(
        "testsuite",
        name=_clean(host.name),
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=str((between(host.run.started, host.run.ended) if host.run else None) or 0),
        timestamp=(host.run.started if host.run and host.run.started else report.made).rstrip("Z"),
        hostname=_clean(host.name),
    )
    properties = Tree.SubElement(suite, "properties")
    own = (("pool", host.pool), ("state", host.state), ("class", host.seen.kind if host.seen else ""))
    for name, value in (*own, *host.standards.items()):
        if value:
            Tree.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    suite.extend(cases)
    return suite


def _case(finding: ReportFinding, host: str) -> Tree.Element:
    case = Tree.Element("testcase", classname=_clean(host), name=_clean(finding.id), time="0")
    message = _clean(finding.message)
    more = f"do next: {_clean(finding.fix)}" if finding.fix else ""
    element = _ELEMENTS.get(finding.status)
    if element == "skipped":
        Tree.SubElement(case, element, message=message)
    elif element:
        Tree.SubElement(case, element, message=message, type=finding.status).text = more or message
    elif finding.status == "warning":  # has passed, and is reported
        Tree.SubElement(case, "system-out").text = f"warning: {message}\n{more}".rstrip()
    return case


def _cases(host: ReportHost) -> list[ReportFinding]:
    """What is reported, then what passed; a host that nothing is known of by name has one case all the same."""
    found = [*host.findings, *(ReportFinding(id=name, status="passed", message="") for name in host.passed)]
    if host.state in ("waiting", "running"):
        found.append(ReportFinding(id=f"run.{host.state}", status="skipped", message=host.message or host.state))
    return found or [ReportFinding(id="host.state", status="passed", message=host.message)]


def _clean(text: str) -> str:
    """With visible escapes for what XML 1.0 cannot hold (the colours of a log, a NUL) or a reader obeys."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", printable(text))
