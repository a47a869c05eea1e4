# Lab stand-in for the kernel's module loader: read by the modprobe, rmmod and insmod stand-ins.
# State lies in /lab (docs/lab.md): sys/module/NAME, proc/modules, proc/driver/nvidia, sys/bus/pci, dmesg.
# shellcheck shell=sh disable=SC2034 # `refusal` is read by those scripts
# A module that does not load makes `refusal` say why, in the kernel's words.
umask 022 # the kernel's own files can be read by all, whoever loads a module
lab=${GPUNODE_LAB_ROOT:-/lab}
table=$lab/standin-gpus
vendor=/opt/nvidia # NVIDIA's own programs, where the lab was given some
refusal=
# shellcheck source=gpunode/lab/standins/node/usr/local/lib/gpunode-lab/mig.sh
. /usr/local/lib/gpunode-lab/mig.sh

log() { echo "[ $(cut -d ' ' -f 1 /proc/uptime | sed 's/$/0000/')] $*" >>"$lab/dmesg"; }

# field FILE NAME: a value out of a module's own information
field() { modinfo -F "$2" "$1" 2>/dev/null | head -n 1; }

loaded() { [ -d "$lab/sys/module/$1" ]; }

# functions CLASSES: addresses of NVIDIA's functions of these classes (0x03 display, 0x0680 NVSwitch)
functions() {
    for device in "$lab"/sys/bus/pci/devices/*; do
        [ -e "$device/vendor" ] || continue
        [ "$(cat "$device/vendor")" = 0x10de ] || continue
        case $(cat "$device/class") in "$1"*) echo "${device##*/}" ;; esac
    done
}

unbound() {
    for slot in $(functions "$1"); do
        [ -L "$lab/sys/bus/pci/devices/$slot/driver" ] || echo "$slot"
    done
}

bind() {
    mkdir -p "$lab/sys/bus/pci/drivers/$1"
    ln -sfn "../../../../bus/pci/drivers/$1" "$lab/sys/bus/pci/devices/$2/driver"
    ln -sfn "../../../../bus/pci/devices/$2" "$lab/sys/bus/pci/drivers/$1/$2"
}

unbind_all() {
    for link in "$lab/sys/bus/pci/drivers/$1"/*; do
        [ -L "$link" ] || continue
        rm -f "$lab/sys/bus/pci/devices/${link##*/}/driver"
    done
    rm -rf "$lab/sys/bus/pci/drivers/$1"
}

# secure_boot: whether the firmware says so: in the variable's 5th byte
secure_boot() { [ "$(tail -c 1 "$lab"/sys/firmware/efi/efivars/SecureBoot-* 2>/dev/null | od -An -tu1)" = "   1" ]; }

# load FILE [NAME=VALUE …]: what insmod does
load() {
    options=${2:-}
    name=$(field "$1" name) # Debian has it in a file of another name: nvidia-current.ko
    loaded "$name" && return 0
    if secure_boot && ! tail -c 28 "$1" | grep -q 'Module signature appended'; then
        refusal="Key was rejected by service"
        log "Loading of unsigned module is rejected"
        return 1
    fi
    for needed in $(field "$1" depends | tr ',-' ' _'); do
        loaded "$needed" || {
            refusal="Unknown symbol in module, or unknown parameter (see dmesg)"
            log "$name: Unknown symbol of $needed (err -2)"
            return 1
        }
    done
    case $name in
    nvidia) start_nvidia "$1" || return ;;
    nvidia_uvm) node nvidia-uvm 510 0 && node nvidia-uvm-tools 510 1 ;;
    nvidia_modeset) node nvidia-modeset 195 254 ;;
    nouveau) for slot in $(unbound 0x03); do bind nouveau "$slot"; done ;;
    esac
    enter "$name" "$1"
    [ "$name" != nvidia ] || uevent /bus/pci/drivers/nvidia
}

# uevent DEVPATH: what the machine's udev would run for what was added there
uevent() {
    rules=$(cat /etc/udev/rules.d/*.rules /usr/lib/udev/rules.d/*nvidia*.rules 2>/dev/null)
    echo "$rules" | sed -n "s|^ACTION==\"add\", DEVPATH==\"$1\", RUN+=\"\(.*\)\"\$|\1|p" | while read -r command; do
        sh -c "$command" </dev/null >/dev/null 2>&1
    done
    wanted=$(echo "$rules" | sed -n "s|^ACTION==\"add\", DEVPATH==\"$1\", .*ENV{SYSTEMD_WANTS}=\"\(.*\)\"\$|\1|p")
    [ -z "$wanted" ] || appear "$wanted"
}

# appear UNITS: what the device's unit would want, by a target, also of a systemd that is yet to start
target=gpunode-lab-device.target
appear() {
    mkdir -p /run/systemd/system/multi-user.target.wants
    printf '[Unit]\nDescription=NVIDIA driver, in place of its device (gpunode lab)\nWants=%s\n' "$1" >"/run/systemd/system/$target"
    ln -sf "../$target" "/run/systemd/system/multi-user.target.wants/$target"
    [ ! -e /run/systemd/private ] || { systemctl daemon-reload && systemctl start --no-block "$target"; } >/dev/null 2>&1
}

vanish() {
    [ -e "/run/systemd/system/$target" ] || return 0
    rm -f "/run/systemd/system/$target" "/run/systemd/system/multi-user.target.wants/$target"
    systemctl stop "$target" >/dev/null 2>&1 && systemctl daemon-reload
}

# enter NAME FILE: the module's folder in /sys/module, its line in /proc/modules, and its holds on those it needs
enter() {
    mkdir -p "$lab/sys/module/$1/holders"
    echo live >"$lab/sys/module/$1/initstate"
    echo 0 >"$lab/sys/module/$1/refcnt"
    version=$(field "$2" version)
    [ -z "$version" ] || echo "$version" >"$lab/sys/module/$1/version"
    for needed in $(field "$2" depends | tr ',-' ' _'); do
        loaded "$needed" && hold "$needed" "$1"
    done
    write_modules
}

hold() {
    ln -sfn "../../$2" "$lab/sys/module/$1/holders/$2"
    count_holders "$1"
}

count_holders() { find "$lab/sys/module/$1/holders" -mindepth 1 | wc -l >"$lab/sys/module/$1/refcnt"; }

holders() { (cd "$lab/sys/module/$1/holders" 2>/dev/null && ls) | tr '\n' ' ' | sed 's/ $//'; }

# write_modules: /proc/modules anew, in place, because it may be mounted as a file
write_modules() {
    for folder in "$lab"/sys/module/*/; do
        [ -e "$folder/refcnt" ] || continue
        listed=$(basename "$folder") # not `name`: that is the caller's
        users=$(holders "$listed" | tr ' ' ,)
        echo "$listed 65536 $(cat "$folder/refcnt") ${users:--}${users:+,} Live 0x0000000000000000"
    done >"$lab/standin-modules.new"
    cat "$lab/standin-modules.new" >"$lab/proc/modules"
    rm -f "$lab/standin-modules.new"
}

# unload NAME: what rmmod does; 1 with `refusal` when it is in use
unload() {
    loaded "$1" || {
        refusal="is not currently loaded"
        return 1
    }
    users=$(holders "$1")
    if [ -n "$users" ]; then
        refusal="is in use by: $users"
        return 1
    fi
    if [ "$1" = nvidia ] && clients; then
        refusal="is in use"
        return 1
    fi
    case $1 in
    nvidia) stop_nvidia ;;
    nvidia_uvm) rm -f /dev/nvidia-uvm /dev/nvidia-uvm-tools ;;
    nvidia_modeset) rm -f /dev/nvidia-modeset ;;
    nouveau) unbind_all nouveau ;;
    esac
    rm -rf "${lab:?}/sys/module/$1"
    for folder in "$lab"/sys/module/*/holders; do
        [ -L "$folder/$1" ] || continue
        rm -f "$folder/$1"
        count_holders "$(basename "${folder%/holders}")"
    done
    write_modules
}

# clients: does any process hold /dev/nvidia*?  (nvidia-persistenced does: a file beside the devices.)
clients() {
    for open in /proc/[0-9]*/fd/*; do
        case $(readlink "$open" 2>/dev/null) in /dev/nvidia*) return 0 ;; esac
    done
    return 1
}

# node NAME MAJOR MINOR: a device file with NVIDIA's numbers; to open it fails with ENXIO, as there is no such device
node() { [ -e "/dev/$1" ] || { mknod -m 666 "/dev/$1" c "$2" "$3" 2>/dev/null || : >"/dev/$1"; }; }

# start_nvidia FILE: bind the GPUs that no driver has and that this flavour drives; none: No such device
start_nvidia() {
    flavour=open
    [ "$(field "$1" license)" = NVIDIA ] && flavour=proprietary
    version=$(field "$1" version)
    for slot in $(unbound 0x03); do
        case ,$(awk -F '\t' -v slot="$slot" '$1 == slot { print $8 }' "$table"), in
        *,"$flavour",*) bind nvidia "$slot" ;;
        *) log "NVRM: The NVIDIA GPU $slot (PCI ID: $(awk -F '\t' -v slot="$slot" '$1 == slot { print $2 }' "$table")) installed in this system is not supported by the $flavour nvidia.ko of the $version driver" ;;
        esac
    done
    if [ ! -d "$lab/sys/bus/pci/drivers/nvidia" ]; then
        [ -z "$(functions 0x03)" ] || log "NVRM: The NVIDIA probe routine was not called for $(functions 0x03 | wc -l) device(s)."
        log "NVRM: No NVIDIA GPU found."
        refusal="No such device"
        return 1
    fi
    for slot in $(unbound 0x0680); do bind nvidia-nvswitch "$slot"; done
    fill_proc "$version" "$flavour"
    keep_ecc
    node nvidiactl 195 255
    give_table "$version"
    log "nvidia: loading out-of-tree module taints kernel."
    log "NVRM: loading NVIDIA UNIX $(banner "$flavour")  $version  Release Build  (gpunode lab stand-in)  "
}

# keep_ecc: of what was set the driver forgets all but the mode of ECC, which takes effect
keep_ecc() {
    [ -e "$lab/standin-settings" ] || return 0
    awk -F '\t' -v OFS='\t' '$2 == "ecc.mode.pending" { print; $2 = "ecc.mode.current"; print }' "$lab/standin-settings" >"$lab/standin-settings.new"
    mv "$lab/standin-settings.new" "$lab/standin-settings"
}

banner() {
    case $1 in
        open) echo "Open Kernel Module for $(uname -m)" ;;
        *) echo "$(uname -m) Kernel Module" ;;
    esac
}

# fill_proc VERSION FLAVOUR: /proc/driver/nvidia
fill_proc() {
    proc=$lab/proc/driver/nvidia
    mkdir -p "$proc/gpus"
    {
        echo "NVRM version: NVIDIA UNIX $(banner "$2")  $1  Release Build  (gpunode lab stand-in)  "
        echo "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14) "
    } >"$proc/version"
    # NVIDIA's own hooks in containers, which have no /proc/driver/nvidia here, leave it alone when it is 0
    modify=1
    [ ! -x "$vendor/nvidia-cdi-hook" ] || modify=0
    printf 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: %s\nDeviceFileUID: 0\nDeviceFileMode: 438\nEnableGpuFirmware: 18\n' "$modify" >"$proc/params"
    for option in $options; do # of two the last one counts, and what the module does not know is only told to dmesg
        parameter=${option%%=*} parameter=${parameter#NVreg_}
        sed -i "s|^$parameter: .*|$parameter: ${option#*=}|" "$proc/params"
    done
    minor=0
    for link in "$lab/sys/bus/pci/drivers/nvidia"/*; do
        slot=${link##*/}
        mkdir -p "$proc/gpus/$slot"
        awk -F '\t' -v slot="$slot" -v minor="$minor" -v firmware="$1" '$1 == slot {
            print "Model: \t\t " $9; print "IRQ:   \t\t 11"; print "GPU UUID: \t " $3
            print "Video BIOS: \t ??.??.??.??.??"; print "Bus Type: \t PCIe"; print "DMA Size: \t 52 bits"
            print "DMA Mask: \t 0xfffffffffffff"; print "Bus Location: \t " slot; print "Device Minor: \t " minor
            print "GPU Firmware: \t " firmware; print "GPU Excluded:\t No" }' "$table" >"$proc/gpus/$slot/information"
        node "nvidia$minor" 195 "$minor"
        mig_start "$slot"
        minor=$((minor + 1))
    done
    mkdir -p "$lab/proc/driver/nvidia-caps" && all_minors "$minor" >"$lab/proc/driver/nvidia-caps/mig-minors"
}

# give_table VERSION: into the driver's files that containers get, which have no /lab: the GPUs, at the end of the library
# that is a fake NVML, or of nvidia-smi where that is a script
give_table() {
    for file in /usr/bin/nvidia-smi /usr/lib/*-linux-gnu/libnvidia-ml.so."$1" /usr/lib64/libnvidia-ml.so."$1" \
        /usr/lib/libnvidia-ml.so."$1"; do
        [ -f "$file" ] && [ -w "$file" ] || continue
        case $file in */nvidia-smi) [ "$(head -c 2 "$file")" = '#!' ] || continue ;; *) grep -q nvmlInit "$file" || continue ;; esac
        ! grep -aq '^#gpu.0000:' "$file" || continue
        { echo && sed 's/^/#gpu\t/' "$table"; } >>"$file"
    done
}

stop_nvidia() {
    unbind_all nvidia
    unbind_all nvidia-nvswitch
    rm -rf "$lab/proc/driver/nvidia" "$lab/proc/driver/nvidia-caps"
    rm -rf /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-caps
    vanish
    log "NVRM: unloaded"
}
