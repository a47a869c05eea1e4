"""What each check id says, as verify, check-boot and kube verify print it (docs/checks.md is made of this table).

Words in capitals stand for what a node has: a role, a kernel, an engine.
"""

from __future__ import annotations

from collections.abc import Mapping

# title of a group → id → when it fails (or what it proves)
CHECKS: Mapping[str, Mapping[str, str]] = {
    "The plan (`gpunode verify`)": {
        "plan.problem": "(refused) the spec cannot be met on this node; the message has the fix (exit code 5)",
        "plan.ROLE.OPTION": "(pending) that option of that role has something to do (exit code 3)",
        "plan.empty": "passes when the node is what the spec asks for",
        "since.drift": "(warning, with --since) what is other than the run left it",
        "since.run": "(warning, with --since) the run did not bring this host to an end, or did not have it",
    },
    "Health, from the probe alone (`gpunode verify`)": {
        "probe.values": "*not-proven* where a value of a GPU, a file or an engine is invalid and was left out: nothing "
        "was judged or changed by it",
        "gpu.present": "(pending) no NVIDIA GPU is on PCI (exit code 3; skipped with `--allow-no-gpu`)",
        "gpu.expected": "there are not as many GPUs as `--expect-gpus` or `verify.expect_gpus` say",
        "gpu.gone": "a GPU is gone that the last good run found on this host (the journal of this controller)",
        "driver.loaded": "no NVIDIA kernel module is loaded (*not-proven* where `driver.branch` is none)",
        "driver.versions-match": "kernel module and user space have different versions",
        "gpu.count": "the driver sees fewer GPUs than PCI, or nvidia-smi fails: names each that is missing, with the "
        "driver's words where it could not start; *not-proven* where the session's device cgroup hides them",
        "gpu.fault": "the driver cannot speak for a GPU: it requires a reset, is lost, or its answer is an error",
        "gpu.recovery": "the driver recommends to reset a GPU, to drain it or to reboot (`gpu_recovery_action`; no "
        "such check where the driver does not know it)",
        "gpu.remap-pending": "a row of GPU memory waits for its repair; *skipped* where MIG hides it",
        "gpu.remap-failure": "a row of GPU memory cannot be repaired; *skipped* where MIG hides it",
        "gpu.retirement-pending": "a page of GPU memory waits to be retired",
        "gpu.ecc": "uncorrected ECC errors since boot",
        "gpu.sram": "more uncorrected SRAM errors in a GPU's life than NVIDIA's limit for a replacement",
        "gpu.slowdown": "a GPU is slowed down by its board: heat or the power supply (not by idling, a power cap or "
        "settings)",
        "gpu.compute-mode": "(warning) a GPU's compute mode is Prohibited: no program can use CUDA there",
        "gpu.alike": "(warning) a GPU has another VBIOS or driver than most of its model in the pool (hosts with the "
        "same `rollout`), or its host other models than a pool that has a name",
        "gpu.xid": "the kernel log has Xids since boot that are not an application's own (those are a warning; 45 "
        "alone is none); *not-proven* where the log has lost its beginning, also in the journal",
        "driver.kernel-log": "since its module was loaded the driver has reported that a GPU's firmware does not "
        "answer or that a reset is required; a warning for a GPU or a task that hung in it, and for a reset that "
        "nvidia-smi no longer asks for",
        "pcie.width": "a GPU, a network card or a PCIe switch has fewer lanes than it and its slot can; *not-proven* "
        "in a guest, where the slot is not seen",
        "pcie.generation": "a link is slower than both ends can; of a GPU only while it works (P0 to P2), *skipped* "
        "while it sleeps",
        "pcie.errors": "fatal errors on the way to a GPU or RDMA device since boot, by the kernel's AER counters "
        "(uncorrected ones that were not fatal are a warning)",
        "nvlink.down": "a GPU has fewer NVLinks up than its model (A100 12, H100 18, H100 NVL 12), or slower ones; of "
        "another model: some are down while others are up; (warning) NVreg_NvLinkDisable switches them off, on what "
        "is no guest",
        "rdma.port": "a port has a cable and is not active, or is slower than others of its kind; a warning for one "
        "that is down next to others",
        "pcie.acs": "(warning) ACS redirects what GPUs and network cards behind one PCIe switch send each other; "
        "*skipped* with vfio-pci",
        "iommu.mode": "(warning) the IOMMU translates what GPUs and network cards behind one PCIe switch access",
        "gpudirect.rdma": "(warning) an RDMA port is active, and network cards reach GPU memory neither by DMA-BUF nor "
        "by nvidia_peermem",
        "engine.memlock": "(warning) an RDMA port is active, and an engine or the kubelet may not lock any memory",
        "gpu.persistence": "(warning) the driver says that persistence mode is off",
        "cpu.governor": "(warning) a CPU has another frequency governor than performance, next to a data centre GPU",
        "fabric.imex": "nvidia-imex.service is not masked next to the DRA driver for ComputeDomains, or has failed",
        "fabric.version": "the fabric manager, libnvidia-nscq or IMEX are not of the driver's version",
        "fabric.state": "a GPU with an NVLink fabric has not joined it, or not with success; *not-proven* where a GPU "
        "behind NVSwitches does not say, *skipped* where none can (A100) and the fabric manager runs",
        "boot.modules": "(warning) a kernel that can boot has no nvidia module (`gpunode check-boot` says why)",
        "boot.versions": "(warning) the module of a kernel that can boot does not fit user space, firmware or a GPU",
        "engine.stopped": "(warning) a container engine does not run: it was stopped, disabled or failed",
        "packages.lost": "a program of an NVIDIA package was deleted; the fix is the command that installs it again",
        "driver.held": "(warning) unattended upgrades or dnf-automatic run, and the driver's packages are not held",
        "repository.key-revoked": "a key file holds a key that its vendor has revoked",
        "repository.twice": "(warning) two files set up the same repository of NVIDIA's",
        "image.first-boot": "what the first boot of a [prepared machine](provision.md#golden-images) did not prove; "
        "*not-proven* before",
        "kubelet.engine": "(warning) the kubelet's socket belongs to no engine that was found",
        "cgroup.driver-match": "kubelet and engine have different cgroup drivers; says what each has and where from",
        "kubernetes.sysctl": "forwarding or bridged packets are not as Kubernetes needs them; a warning names a file "
        "that undoes it at boot",
        "devices.char-links": "an NVIDIA device file has no link in /dev/char where systemd keeps containers' devices "
        "(a warning where the engine's cgroup driver is unknown)",
        "containers.gpu-kept": "a running container has lost its GPUs; a warning names those that the next "
        "`systemctl daemon-reload` takes them from, or one may have taken them from ([GPUs of running "
        "containers](runtime.md#gpus-of-running-containers))",
        "sharing.mig": "a GPU has MIG on without an instance, an instance has no compute instance, a mode waits for a "
        "reset, or cutting failed; a warning where nothing makes the instances again at boot",
        "sharing.mps": "the MPS unit is enabled and no control daemon runs; a warning where several do",
        "cdi.fresh": "a CDI specification is made for another driver, names GPUs or MIG devices that are gone, lacks "
        "some, brings files that are gone, or is broken; that podman is there without any is a warning",
    },
    "Smoke: the GPU is really used (`gpunode verify`, without `--no-smoke`)": {
        "driver.smi": "`nvidia-smi` lists other GPUs than PCI",
        "cuda.init": "CUDA does not start on a GPU or MIG device, or a kernel computes wrong there: libcuda by the "
        "node's python3, else NVIDIA's vectorAdd of the CUDA demo suite; *not-proven* without either, for GPUs in use "
        "in an exclusive compute mode (no context is made), "
        "in mode Prohibited, and where no memory is free",
        "cuda.nvcc-VERSION": "`nvcc --version` of a wanted toolkit does not say so",
        "toolkit.cli": "`nvidia-container-cli --load-kmods info` does not reach the driver; *not-proven* where there "
        "is none, and `driver.branch` is none",
        "dcgm.diag": "`dcgmi diag -r 1` fails, where DCGM is installed",
        "containerd.binary": "`ctr run --runc-binary …/nvidia-container-runtime` starts no container: the runtime's "
        "binary (`ctr` never reads the CRI configuration)",
        "containerd.cri-nvidia": "a pod through the CRI socket with the handler nvidia: the configuration. "
        "*not-proven* without `crictl` on the node, and where a running kubelet removed the pod, as it does with those "
        "that it did not create, in each of six attempts",
        "containerd.cri-default": "the same with the default handler, which has to be the wanted one",
        "docker.runtime": "`docker run --runtime=nvidia`",
        "docker.default": "`docker run` without a runtime, which has to take the wanted one",
        "docker.gpus-all": "`docker run --gpus all`",
        "ENGINE.CHECK.gpus": "the container of that check sees other GPUs than the node has",
        "ENGINE.CHECK.cuda": "the same program fails in the container of that check, and works on the node; "
        "*not-proven* without python3 or /cuda-samples/vectorAdd in `verify.image`; no such check where the node's was "
        "not passed, or a GPU is in "
        "an exclusive mode",
        "smoke.ran": "appears only when the script or the checks of an engine were cut off, or the host was lost",
    },
    "Acceptance (`gpunode accept`)": {
        "accept.dcgm.TEST": "DCGM's test failed; *not-proven* where DCGM skipped it, a warning where it speaks of a "
        "setting alone",
        "accept.METRIC": "h2d, d2h, p2p, allreduce or gemm is below its floor: broken below `alive`, slow below `full` "
        "(a warning at level quick); *not-proven* without a floor or a tool",
        "accept.loopback": "the same of an all-reduce over the network cards; *not-proven* where it went another way",
        "accept.pair": "the same of two nodes' network cards",
        "accept.nvbandwidth": "nvbandwidth ended with an error",
        "accept.METRIC.fleet": "a value is more than 10 % below the median of machines of its kind, and far outside "
        "of their spread (5 %: a warning)",
        "accept.METRIC.count": "the tool speaks of another number of GPUs than the machine has",
        "accept.METRIC.right": "values came out wrong, or the run did not come to its end",
        "accept.allreduce.way": "passes with the way that NCCL's own log names: NVLS, P2P; a warning for shared memory "
        "or a network within the machine",
        "accept.gemm.sound": "gpu-fryer or gpu_burn says so of a GPU",
        "accept.STAGE.slowdown": "a GPU was slowed down by its board under load: heat, power brake",
        "accept.STAGE.heat": "(warning) a GPU was above 85 °C, or its memory above 95 °C",
        "accept.STAGE.link": "(warning) PCIe generation or width under load below what the GPU can do",
        "accept.STAGE.retried": "(warning) the tool ended by an error of its own at first, and was started once more",
        "accept.STAGE.time": "the tool did not end in its time",
        "accept.verdict": "(`verify --since-acceptance`) the record of the host is missing, was changed after it was "
        "signed, or does not say accepted",
        "accept.since": "(warning) GPUs, driver, kernel or settings are other than at the acceptance",
        "accept.signed": "passes with the key that signed the record",
    },
    "The next boot (`gpunode check-boot`)": {
        "boot.KERNEL": "that kernel would come up without its GPU: no module of the right version and flavour, no "
        "firmware, no headers to build one",
        "boot.gpu": "(warning) no NVIDIA GPU is on PCI",
        "boot.kernels": "(warning) no kernel image was found: the node is booted from elsewhere",
        "boot.blacklisted": "a file of modprobe.d keeps the nvidia module from loading",
        "boot.nouveau": "(warning) nouveau is not blacklisted, and may take the GPU first",
        "boot.secure-boot": "(warning) Secure Boot is on: modules that DKMS built load only with an enrolled key",
    },
    "The cluster (`gpunode kube verify`)": {
        "kube.drift": "(pending) an object, label or taint is not as gpunode.yml says, the pods of a workload got an "
        "addition (named with the time), or what was applied earlier is no longer asked for; what an admission policy "
        "rewrote on its way is none (exit code 3)",
        "kube.ready": "a workload of gpunode, or of a chart whose values it wrote, is not ready: with what its pods "
        "say, or why they are not created (quota, pod security, limits, webhooks)",
        "kube.node": "a node with GPUs is not Ready, a host of the inventory is no node, a node is in two pools, or "
        "its engine has not the runtime that pods name (containerd tells from 2.0 on; with an older one `--smoke` "
        "finds it)",
        "kube.gpus": "a node offers other, more or fewer GPUs than its pool shares, or fewer than it has; pods hold "
        "more of a resource than there is; its kubelet refused a pod lately for devices that no pod holds, or for a "
        "DRA driver of NVIDIA that is not registered",
        "kube.mig": "the MIG layout that a node's label asks for is not in force (`nvidia.com/mig.config.state`)",
        "kube.pool": "no node offers a GPU, or another program offers or cuts the same ones; not proven where a "
        "selector chooses no node, or a chosen node left",
        "kube.waiting": "(warning) pods wait for more GPUs than any node has free, or for what none offers",
        "kube.unread": "not proven: it could not be read, and the rest was judged without it",
        "kube.error": "a pool or a node could not be proven; the others were",
        "kube.pool-proof": "not proven where each node of the pool is cordoned, tainted or down",
        "kube.node-proof": "not proven where `--max-failures` left the node out",
        "kube.vectoradd": "passes when a pod adds two vectors on a GPU, and its log says «Test PASSED»",
        "kube.which-gpu": "passes when `nvidia-smi -L` in a container that asked for one GPU lists exactly one",
        "kube.shared-gpu": "passes when one pod more than a node has GPUs runs there at the same time, and two of "
        "them see the same GPU",
        "kube.too-many-stays-pending": "passes when a request larger than any node stays Pending",
        "kube.gpushare-two-pods": "passes when 3 and 5 GiB run side by side, each with a GPU named by the extender, "
        "none overbooked",
        "kube.gpushare-too-large-stays-pending": "passes when one unit more than the largest GPU has stays Pending",
        "kube.gpushare-binpack": "passes when the three pods of a StatefulSet are packed as the extender packs: onto "
        "the GPU with the least memory left that has room",
        "kube.dra-claim": "passes when a pod gets a GPU by a ResourceClaim, and adds two vectors",
        "kube.dra-memory-two-pods": "passes when 3 and 5 GiB run side by side, and each claim takes its part of a "
        "GPU's memory",
        "kube.dra-memory-too-large-stays-pending": "passes when a claim for a GiB more than the largest GPU has stays "
        "Pending",
        "kube.gate": "(`kubernetes.gate`) not proven: nodes that still have the taint `gpunode/unproven`",
        "kube.opened": "(`kubernetes.gate`) passes when the node is labelled `gpunode/proven` and has lost the taint; "
        "fails where the API server refused that, or the node has left the cluster",
        "kube.cleaned-up": "the namespace of the proofs is still there",
    },
}
