# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: facts
short_description: Find out what a GPU node has
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
description:
  - Sends the probe, which changes nothing, and gives back the facts in its text.
options:
  sections:
    description: Sections of the probe to ask for; empty means all. What belongs to the others is empty then.
    type: list
    elements: str
    choices:
      - system
      - os_release
      - secure_boot
      - kernels
      - dkms
      - pci
      - lspci
      - driver
      - nvidia_smi
      - nvlink
      - topology
      - links
      - tuning
      - xids
      - gpu_containers
      - cuda
      - toolkit
      - cdi
      - units
      - runtimes
      - containers
      - kubernetes
      - sysctl
      - packages
      - holds
      - locks
      - journal
      - first_boot
      - sharing
      - files
    default: []
  text:
    description:
      - Give back what the probe printed, too. It has configuration files with their passwords, so use C(no_log).
    type: bool
    default: false
attributes:
  diff_mode:
    support: none
    description: It changes nothing.
  check_mode:
    support: full
    description: Reads only, so it runs in check mode too.
"""

EXAMPLES = r"""
- name: Probe the node
  gpunode.node.facts:
  register: found

- name: Show the driver and the number of GPUs
  ansible.builtin.debug:
    msg: "{{ found.facts.gpus | length }} GPUs, driver {{ found.facts.driver.loaded }}"
"""

RETURN = r"""
probe:
  description: What the probe printed.
  type: str
  returned: when O(text) is true
facts:
  description:
    - The facts that were found, of configuration files the hash and size alone. They are no facts of Ansible's, as a
      node is not trusted; register the result.
  type: dict
  returned: always
  sample: {distro: {id: ubuntu, version_id: "24.04"}, gpus: [{slot: "0000:17:00.0", id: "10de:2330"}], toolkit: 1.18.1}
  contains:
    hostname:
      description: Hostname.
      type: str
    arch:
      description: Uname -m.
      type: str
    distro:
      description: 'Distro. Keys: id, version_id, codename, like, name, base.'
      type: dict
    boot_id:
      description: Boot id.
      type: str
    init:
      description: Systemd, other.
      type: str
    cgroups2:
      description: Control groups are of version 2 alone.
      type: bool
    virtualization:
      description: 'None, kvm, wsl, docker, podman, lxc, …: systemd-detect-virt''s words.'
      type: str
    container:
      description: The target is a container without an init of its own.
      type: bool
    tegra:
      description: Device-tree model of a Jetson/Tegra board.
      type: str
    board:
      description: 'That of another machine which a device tree describes: no server of arm64.'
      type: str
    secure_boot:
      description: 'None: no EFI variables.'
      type: bool
    user:
      description: User.
      type: str
    root:
      description: Root.
      type: bool
    kernels:
      description: 'Kernels. Keys: release, running, image, headers, package, module, flavour, dkms.'
      type: list
    gpus:
      description: 'Gpus. Keys: slot, id, class_code, subsystem, driver, virtual_function, label.'
      type: list
    nvswitches:
      description: 'Nvswitches. Keys: slot, id, class_code, subsystem, driver, virtual_function,
        label.'
      type: list
    nvlink5_fabric:
      description: 'SW_MNG in the VPD of an InfiniBand function: HGX B200 and later.'
      type: bool
    nvml:
      description: 'Nvml. Keys: index, uuid, name, slot, memory_mib, mig_current, mig_pending, persistence,
        ecc_current, ecc_pending, ecc_uncorrected, retired_pending, remap_pending, remap_failure,
        fabric_state, fabric_status, recovery, compute_mode, power_limit, power_min, power_max,
        power_default, clock, clock_max, pstate, vbios, pcie_generation, pcie_generation_max, pcie_width,
        pcie_width_max, sram_uncorrected, sram_exceeded, nvlinks_up, nvlink_speed, event_reasons,
        fault.'
      type: list
    driver:
      description: 'Driver. Keys: loaded, loaded_flavour, userspace, elsewhere, firmware, nouveau,
        nova, runfile, parameters, smi.'
      type: dict
    cuda:
      description: Versions under /usr/local/cuda-* or /opt/cuda.
      type: list
    cuda_default:
      description: What /usr/local/cuda leads to.
      type: str
    toolkit:
      description: Version of nvidia-container-toolkit, by its binary.
      type: str
    runtimes:
      description: 'Runtimes. Keys: name, distribution, version, binary, unit, active, enabled,
        flags, socket, config, effective_error, rendered.'
      type: list
    containers:
      description: 'By engine. Keys: count, names, live_restore, runtimes, knows_hook, reloads.'
      type: dict
    rootless_docker:
      description: Ids of users with a Docker of their own, which does not run as root.
      type: list
    kubernetes:
      description: 'Kubernetes. Keys: kind, role, kubelet, cri_socket, cgroup_driver, cgroup_source,
        cgroup_from_cri, gpu_operator, driver_container.'
      type: dict
    package_manager:
      description: Apt, dnf, zypper, pacman.
      type: str
    packages:
      description: 'Only names that concern us. Keys: name, version, held, arch.'
      type: dict
    broken_packages:
      description: Dpkg --audit and the like.
      type: list
    lost_programs:
      description: 'Programs that somebody has deleted, by path: the package that brought each.'
      type: dict
    package_lock:
      description: Who holds the package manager's lock, "" when free.
      type: str
    lease:
      description: The controller that is at work there, and its run.
      type: str
    services:
      description: 'Services. Keys: name, active, enabled, memlock, locked.'
      type: dict
    modules:
      description: 'Loaded kernel modules that concern us: nvidia, nouveau, overlay, br_netfilter
        ….'
      type: list
    sysctl:
      description: 'Values in force that concern us; no br_netfilter: no key.'
      type: dict
    files:
      description: 'By path: repositories, keyrings, modprobe.d, configurations of engines. Keys:
        path, sha256, mode, owner, size, data, target, regular.'
      type: dict
    device_nodes:
      description: 'Device nodes. Keys: path, number, linked.'
      type: list
    gpu_containers:
      description: 'Gpu containers. Keys: name, id, unit, hook, state, devices, reloaded.'
      type: list
    cdi:
      description: 'Cdi. Keys: specs, gpus, missing.'
      type: dict
    xids:
      description: 'Xids. Keys: code, slot, line, count.'
      type: list
    not_started:
      description: 'Not started. Keys: slot, words.'
      type: list
    kernel_faults:
      description: 'Kernel faults. Keys: kind, line, count.'
      type: list
    nvlink_inactive:
      description: '"GPU 0 link 3"; "GPU 0: all links" where its like has some up.'
      type: list
    topology:
      description: 'With two GPUs or more. Keys: names, links, cpus, numa.'
      type: dict
    pcie:
      description: 'Pcie. Keys: slot, parent, speed, max_speed, width, max_width, acs, fatal, nonfatal,
        correctable, iommu.'
      type: list
    rdma:
      description: 'Rdma. Keys: device, port, slot, state, physical, rate, layer.'
      type: list
    hidden:
      description: Device files that this session's device cgroup keeps it from opening.
      type: list
    tuning:
      description: 'Tuning. Keys: governors, lockdown, kernel_options, arguments, next_arguments,
        loader, ofed, peer_memory, peermem, gdrdrv, imex_dra.'
      type: dict
    first_boot:
      description: 'First boot. Keys: program, armed, status, at, message, failed.'
      type: dict
    sharing:
      description: 'Sharing. Keys: instances, mig_program, mig_status, mig_message, mps_daemons,
        mps_threads.'
      type: dict
    unread:
      description: 'Sections that did not say all: what is empty there is not «none», but not known.'
      type: list
    unfinished:
      description: Ids of transactions in the node's journal with an intent and no outcome.
      type: list
    state_blocked:
      description: '/var/lib/gpunode is something else than a folder: nothing can be recorded.'
      type: bool
    denied:
      description: Sections, and "file PATH", of which the probe's user may not read all.
      type: list
    notes:
      description: '"section: what was missing or not permitted".'
      type: list
    invalid:
      description: 'What was left out of one thing, the rest of the node goes on (core/facts/vet.py).
        Keys: section, thing, what.'
      type: list
    malformed:
      description: '"section: ''text'' is not a valid kernel release": what was left out, and the
        whole node rests on it.'
      type: list
"""
