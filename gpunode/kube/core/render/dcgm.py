"""Monitoring: what the DCGM exporter's chart collects, and the dashboard and the alerts that are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpunode.kube.core.cluster import Cluster, Object
from gpunode.kube.core.objects import config_map, labels, thing

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


_GPUS = "count by (node) (count by (node, UUID) (DCGM_FI_DEV_GPU_TEMP))"
# name, expression, for how long, severity, summary, what to do
_ALERTS = (
    (
        "GpuXid",
        "DCGM_FI_DEV_XID_ERRORS > 0",  # and none of those that the device plugin ignores
        "0m", "warning", "Xid {{ $value }}",
        "Look the Xid up in https://docs.nvidia.com/deploy/xid-errors/; 48, 63, 64, 79, 94 and 95 are the hardware's.",
    ),
    (
        "GpuFellOffTheBus",
        "DCGM_FI_DEV_XID_ERRORS == 79",
        "0m", "critical", "fell off the bus (Xid 79)",
        "Drain the node and power-cycle it; if it comes again, the GPU, its power or its slot is broken.",
    ),
    (
        "GpuLost",
        f"{_GPUS} < {_GPUS.replace('DCGM_FI_DEV_GPU_TEMP', 'DCGM_FI_DEV_GPU_TEMP offset 1h')}",
        "5m", "critical", "the node shows fewer GPUs than an hour ago",
        "Compare nvidia-smi -L with lspci -d 10de: on the node.",
    ),
    (
        "GpuEccUncorrectable",
        "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]) > 0",
        "0m", "critical", "uncorrectable memory errors",
        "Drain the node and reset the GPU; if they come again, have it replaced.",
    ),
    (
        "GpuRowRemapFailed",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
        "0m", "critical", "broken memory could not be remapped",
        "Have the GPU replaced.",
    ),
    (
        "GpuRowRemapPending",
        "DCGM_FI_DEV_ROW_REMAP_PENDING > 0",
        "1h", "warning", "broken memory waits to be remapped",
        "Drain the node and reset the GPU, or reboot.",
    ),
    (
        "GpuThermalThrottling",
        "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) > 1e8",
        "10m", "warning", "slowed down by heat more than a tenth of the time",
        "Look at fans, dust and the room's temperature.",
    ),
    (
        "GpuExporterDown",
        'up{job=~".*dcgm-exporter"} == 0',
        "10m", "warning", "the DCGM exporter does not answer",
        "kubectl logs of its pod says why; often the driver is gone: gpunode verify.",
    ),
)  # fmt: skip


def alert_rules(ignored_xids: Iterable[int]) -> list[Object]:
    """At most eight, for a PrometheusRule; the Xids that NVIDIA's device plugin ignores alert nobody."""
    others = "".join(f" != {xid}" for xid in ignored_xids)
    return [
        {
            "alert": name,
            "expr": expression + (others if name == "GpuXid" else ""),
            "for": wait,
            "labels": {"severity": severity},
            "annotations": {
                "summary": f"GPU {{{{ $labels.gpu }}}} of {{{{ $labels.node }}}}: {summary}",
                "action": act,
            },
        }
        for name, expression, wait, severity, summary, act in _ALERTS
    ]


EXPORTER = "dcgm-exporter"

# Everything that the dashboard and the alerts read, and no profiling metric: those collide with profilers.
COUNTERS = """\
DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock frequency (in MHz).
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DEV_MEMORY_TEMP, gauge, Memory temperature (in C).
DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, Total number of PCIe retries.
DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).
DCGM_FI_DEV_MEM_COPY_UTIL, gauge, Memory utilization (in %).
DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (in MiB).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.
DCGM_FI_DEV_THERMAL_VIOLATION, counter, Throttling duration due to thermal constraints (in ns).
DCGM_FI_DEV_POWER_VIOLATION, counter, Throttling duration due to power constraints (in ns).
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, Total number of single-bit volatile ECC errors.
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Total number of double-bit volatile ECC errors.
DCGM_FI_DEV_ROW_REMAP_FAILURE, gauge, Whether remapping of rows has failed.
DCGM_FI_DEV_ROW_REMAP_PENDING, gauge, Whether rows wait for a reset of the GPU to be remapped.
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, Total number of NVLink bandwidth counters for all lanes.
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""


def monitoring(cluster: Cluster) -> list[Object]:
    """The dashboard, and a PrometheusRule where the Prometheus operator is there; the exporter comes by its chart."""
    if not cluster.spec.monitoring.enabled:
        return []
    return [_dashboard(cluster), *([_rules(cluster)] if cluster.spec.monitoring.prometheus_operator else [])]


def exporter_monitor(cluster: Cluster) -> Object:
    """The values of the exporter's ServiceMonitor, in its own chart and in the operator's.

    The alerts count GPUs by node; the exporter's own name for it has changed between its versions.
    """
    watched = cluster.spec.monitoring
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node", "action": "replace"}
    return {
        "enabled": watched.prometheus_operator,
        "interval": watched.interval,
        "honorLabels": True,
        "additionalLabels": dict(watched.labels),
        "relabelings": [node],
    }


def _rules(cluster: Cluster) -> Object:
    """With the labels by which a Prometheus selects it."""
    spec = {"groups": [{"name": "gpunode", "rules": alert_rules(cluster.knowledge.ignored_xids)}]}
    api, namespace = "monitoring.coreos.com/v1", cluster.spec.namespace
    found = thing("PrometheusRule", api, "gpunode", EXPORTER, {"spec": spec}, namespace=namespace)
    found["metadata"]["labels"] = {**cluster.spec.monitoring.labels, **labels(EXPORTER)}
    return found


def _dashboard(cluster: Cluster) -> Object:
    """Grafana's sidecar loads ConfigMaps with this label."""
    found = config_map(cluster, "gpunode-dashboard", EXPORTER, {"gpunode.json": dashboard()})
    found["metadata"]["labels"]["grafana_dashboard"] = "1"
    return found
