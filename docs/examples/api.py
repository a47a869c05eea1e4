"""Detect nodes, plan them, edit a configuration in memory, choose a driver.  Nothing is changed anywhere.

python api.py            this machine
python api.py PROBE...   nodes from their saved probes, which `gpunode detect --save FOLDER` writes
"""

import sys
from pathlib import Path

import gpunode

probes = tuple(map(Path, sys.argv[1:]))
targets = gpunode.Targets(probes=probes, local=not probes)
desired = gpunode.DesiredState({"driver": {"branch": "580"}}, to_run=False)
for found in gpunode.detect(targets):
    if found.facts is None:
        print(f"{found.host}: {found.error}")
        continue
    plan = desired.plan(found.host, found.facts).plan
    print(f"{found.host}: {len(found.facts.gpus)} GPUs, {plan.outcome}")
    for step in plan.steps:
        print(f"  {step.title}")
    for problem in plan.problems:
        print(f"  refused: {problem.what}; {problem.fix}")

files = {"/etc/docker/daemon.json": b'{"log-driver": "journald"}\n'}
request = gpunode.RuntimeRequest(runtime="docker", version="28.5")
edit = gpunode.configure_runtime(files, request)
print((edit.changes["/etc/docker/daemon.json"] or b"").decode())
changed = files | {path: data for path, data in edit.changes.items() if data is not None}
assert gpunode.unconfigure_runtime(changed, request, [edit.undo]).changes == files

wanted = gpunode.SolveRequest(gpus=("10de:2330",), distro="ubuntu:24.04", cuda=gpunode.CudaSpec(versions=("12.8",)))
solution = gpunode.solve(wanted, gpunode.load_knowledge())
if solution.driver is not None:
    print(f"H100 on Ubuntu 24.04: driver {solution.driver.branch}, {solution.driver.flavour} kernel modules")
for reason in solution.reasons:
    print(f"  {reason.what}: {reason.why}")
