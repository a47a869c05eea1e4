"""Alert rules for Prometheus: what of a GPU needs a person, and nothing else."""

from __future__ import annotations

from gpunode.core.kube.cluster import Object

# Errors of the application, not of the GPU: NVIDIA's device plugin ignores the same (internal/rm/health.go).
APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)

_GPUS = "count by (node) (count by (node, UUID) (DCGM_FI_DEV_GPU_TEMP))"
# name, expression, for how long, severity, summary, what to do
_ALERTS = (
    (
        "GpuXid",
        "DCGM_FI_DEV_XID_ERRORS > 0" + "".join(f" != {xid}" for xid in APPLICATION_XIDS),
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


def alert_rules() -> list[Object]:
    """At most eight, for a PrometheusRule."""
    return [
        {
            "alert": name,
            "expr": expression,
            "for": wait,
            "labels": {"severity": severity},
            "annotations": {
                "summary": f"GPU {{{{ $labels.gpu }}}} of {{{{ $labels.node }}}}: {summary}",
                "action": act,
            },
        }
        for name, expression, wait, severity, summary, act in _ALERTS
    ]
