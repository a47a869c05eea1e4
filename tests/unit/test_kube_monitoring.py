"""Counters, alerts and the dashboard belong together, and Prometheus can read them."""

from __future__ import annotations

import json
import re
from typing import Any

import promql_parser
import pytest
from kube_cases import KNOWN

from gpunode.core.spec import parse_spec
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import cluster_of, render
from gpunode.kube.core.render.dcgm import COUNTERS, alert_rules, dashboard

IGNORED = load_kube_knowledge().ignored_xids
BOARD = json.loads(dashboard())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
ALERTS = [rule["expr"] for rule in alert_rules(IGNORED)]


@pytest.mark.parametrize("query", [*ALERTS, *QUERIES])
def test_prometheus_reads_a_query(query: str) -> None:
    promql_parser.parse(query)


def test_every_metric_that_is_asked_for_is_collected() -> None:
    known = [line.split(", ") for line in COUNTERS.splitlines()]
    assert all(len(line) == 3 and line[1] in ("gauge", "counter", "label") for line in known)
    asked = {name for query in [*ALERTS, *QUERIES] for name in re.findall(r"DCGM_\w+", query)}
    assert asked - {line[0] for line in known} == set()


def test_a_rate_is_of_a_counter() -> None:
    kinds = dict(line.split(", ")[:2] for line in COUNTERS.splitlines())
    rated = {name for query in [*ALERTS, *QUERIES] for name in re.findall(r"(?:rate|increase)\((\w+)", query)}
    assert {kinds[name] for name in rated} == {"counter"}


def test_alerts_are_few_and_say_what_to_do() -> None:
    rules = alert_rules(IGNORED)
    assert len(rules) == len({rule["alert"] for rule in rules}) <= 8
    assert all(set(rule["annotations"]) == {"summary", "action"} for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}


def test_xids_of_applications_alert_nobody() -> None:
    xid = next(rule["expr"] for rule in alert_rules(IGNORED) if rule["alert"] == "GpuXid")
    assert re.findall(r"!= (\d+)", xid) == [str(number) for number in IGNORED]
    assert len(IGNORED) > 3 and 79 not in IGNORED


def test_panels_of_the_dashboard_stand_next_to_each_other() -> None:
    places: list[dict[str, Any]] = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [(p["x"] + x, p["y"] + y) for p in places for x in range(p["w"]) for y in range(p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert [panel["id"] for panel in BOARD["panels"]] == list(range(1, len(places) + 1))


@pytest.mark.parametrize(
    ("install", "release", "path"),
    [("helm", "dcgm-exporter", ("customMetrics",)), ("operator", "gpu-operator", ("dcgmExporter", "config", "data"))],
)
def test_charts_collect_what_the_alerts_read(install: str, release: str, path: tuple[str, ...]) -> None:
    """NVIDIA's own list has no thermal violations, no ECC errors, no pending row remapping."""
    spec = parse_spec({"kubernetes": {"install": install, "monitoring": {"enabled": True}}})
    rendered = render(cluster_of({"": spec}, "1.36", KNOWN))
    value: Any = next(one for one in rendered.releases if one.name == release).values
    for key in path:
        value = value[key]
    assert value == COUNTERS
