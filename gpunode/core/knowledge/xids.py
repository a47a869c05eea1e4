"""Two lists of Xids, as knowledge/xids.toml has them (a test compares): for checks and alerts, which read no files."""

from __future__ import annotations

# NVIDIA's catalogue holds the application responsible (docs.nvidia.com/deploy/xid-errors): the GPU is sound.
APPLICATION = frozenset({13, 31, 43, 45, 68, 137})
# NVIDIA's device plugin ignores them (internal/rm/health.go): the GPU stays allocatable.
IGNORED = frozenset({13, 31, 43, 45, 68, 109})
