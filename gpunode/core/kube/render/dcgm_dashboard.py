"""One Grafana dashboard: what the GPUs do, how full and how warm they are, and what is wrong with them."""

from __future__ import annotations

import json

from gpunode.core.kube.cluster import Object

_FILTER = '{node=~"$node", gpu=~"$gpu"}'
_BY_GPU = "{{node}} GPU {{gpu}}"
# title, expression, unit, legend
_PANELS = (
    ("Utilization", f"DCGM_FI_DEV_GPU_UTIL{_FILTER}", "percent", _BY_GPU),
    (
        "Memory used",
        f"DCGM_FI_DEV_FB_USED{_FILTER} / (DCGM_FI_DEV_FB_USED{_FILTER} + DCGM_FI_DEV_FB_FREE{_FILTER})",
        "percentunit",
        _BY_GPU,
    ),
    ("Temperature", f"DCGM_FI_DEV_GPU_TEMP{_FILTER}", "celsius", _BY_GPU),
    ("Power", f"DCGM_FI_DEV_POWER_USAGE{_FILTER}", "watt", _BY_GPU),
    ("SM clock", f"DCGM_FI_DEV_SM_CLOCK{_FILTER} * 1e6", "hertz", _BY_GPU),
    ("Throttled by heat", f"rate(DCGM_FI_DEV_THERMAL_VIOLATION{_FILTER}[5m]) / 1e9", "percentunit", _BY_GPU),
    ("Last Xid", f"DCGM_FI_DEV_XID_ERRORS{_FILTER}", "none", _BY_GPU),
    ("Uncorrectable memory errors", f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{_FILTER}", "short", _BY_GPU),
    (
        "Memory used by pod",
        'sum by (namespace, pod) (DCGM_FI_DEV_FB_USED{node=~"$node", gpu=~"$gpu", pod!=""}) * 1024 * 1024',
        "bytes",
        "{{namespace}}/{{pod}}",
    ),
    ("GPUs", "count by (node) (count by (node, UUID) (DCGM_FI_DEV_GPU_TEMP))", "short", "{{node}}"),
)
_WIDTH, _HEIGHT = 12, 8


def dashboard() -> str:
    """The JSON that Grafana imports; the data source is chosen by the reader."""
    return json.dumps(
        {
            "uid": "gpunode",
            "title": "GPUs",
            "tags": ["gpunode"],
            "timezone": "browser",
            "schemaVersion": 39,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {"list": [_source(), _variable("node"), _variable("gpu")]},
            "panels": [_panel(number, *row) for number, row in enumerate(_PANELS)],
        },
        indent=1,
    )


def _source() -> Object:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> Object:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values(DCGM_FI_DEV_GPU_TEMP, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, title: str, expression: str, unit: str, legend: str) -> Object:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": source,
        "gridPos": {"x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "right"}},
        "targets": [{"refId": "A", "datasource": source, "expr": expression, "legendFormat": legend}],
    }
