# Lab stand-in: what NVIDIA's runtime and its hook give a container; read by their stand-ins.
# shellcheck shell=sh
# Callers set: `config`, the container's specification, and `environment`, its NVIDIA_* variables.
settings=/etc/nvidia-container-runtime/config.toml
mounted=/var/run/nvidia-container-devices

# setting KEY DEFAULT: above the first table of the toolkit's configuration
setting() {
    found=$(sed -n '/^ *\[/q; s/^ *'"$1"' *= *\([a-z]*\).*/\1/p' "$settings" 2>/dev/null)
    echo "${found:-$2}"
}

# wish: the GPUs that a container asks for, as the real one decides (internal/config/image/cuda_image.go, VisibleDevices):
# by mounts, where the configuration accepts those; else by the variable, where the container is privileged or the
# configuration accepts it of others, too
wish() {
    if [ "$(setting accept-nvidia-visible-devices-as-volume-mounts false)" = true ]; then
        # shellcheck disable=SC2154 # the caller's
        by_mounts=$(tr -d ' \n\t' <"$config" | grep -o "{\"destination\":\"$mounted/[^}]*\"source\":\"/dev/null\"" |
            sed "s|{\"destination\":\"$mounted/||; s|\".*||" | paste -s -d , -)
        [ -z "$by_mounts" ] || { echo "$by_mounts"; return; }
    fi
    privileged=$(grep -c '"CAP_SYS_ADMIN"' "$config")
    [ "$privileged" != 0 ] || [ "$(setting accept-nvidia-visible-devices-envvar-when-unprivileged true)" = true ] || return
    # shellcheck disable=SC2154 # the caller's
    echo "$environment" | tr ' ' '\n' | sed -n 's/^NVIDIA_VISIBLE_DEVICES=//p' | tail -n 1
}

# gpu_files WISH FORMAT: the device files that it asks for, by GPU or MIG instance: path, major, minor; and those of the
# driver with them
gpu_files() {
    index=0 given=''
    for device in /dev/nvidia[0-9]*; do
        [ -e "$device" ] || continue
        own=$(uuids "$index")
        wanted=''
        for name in all "$index" $own; do
            case ,$1, in *,"$name",*) wanted=1 ;; esac
        done
        index=$((index + 1))
        [ -n "$wanted" ] || continue
        given=1
        # shellcheck disable=SC2046,SC2059 # two numbers, and a format of ours
        printf "$2" "$device" $(stat -c '0x%t 0x%T' "$device")
        capabilities "$1" "${device#/dev/nvidia}" "$own" | while read -r file; do
            # shellcheck disable=SC2046,SC2059
            printf "$2" "$file" $(stat -c '0x%t 0x%T' "$file")
        done
    done
    [ -n "$given" ] || return 0
    for device in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset; do
        # shellcheck disable=SC2046,SC2059
        [ ! -c "$device" ] || printf "$2" "$device" $(stat -c '0x%t 0x%T' "$device")
    done
}

# uuids INDEX: that of the GPU, and those of its MIG devices
uuids() {
    nvidia-smi -L 2>/dev/null | awk -v gpu="GPU $1:" '/^GPU/ { on = index($0, gpu) == 1 } on' | sed 's/.*(UUID: \(.*\))$/\1/'
}

# capabilities WISH MINOR UUIDS: the files that stand for the right to that GPU's MIG instances, of those that are asked for
capabilities() {
    mig=/proc/driver/nvidia/capabilities/gpu$2/mig number=0
    for uuid in $3; do
        case $uuid in MIG-*) ;; *) continue ;; esac
        number=$((number + 1))
        case ,$1, in *,"$uuid",*) ;; *,MIG-*) continue ;; esac
        instance=$(printf '%s\n' "$mig"/gi*/ci0 | sort -V | sed -n "${number}p")
        sed -n 's|DeviceFileMinor: |/dev/nvidia-caps/nvidia-cap|p' "${instance%/ci0}/access" "$instance/access"
    done
}

# driver_files: the programs and libraries of the loaded driver, as nvidia-ctk finds them (pkg/nvcdi/driver-nvml.go)
driver_files() {
    loaded=$(cat /sys/module/nvidia/version 2>/dev/null) || return 0
    for file in nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server \
        nvidia-imex nvidia-imex-ctl; do
        command -v "$file"
    done
    for file in /usr/lib/*-linux-gnu/lib*.so."$loaded" /usr/lib64/lib*.so."$loaded" /usr/lib/lib*.so."$loaded"; do
        [ ! -f "$file" ] || echo "$file"
    done
}

# driver_links: lines LINK TARGET, the names by which the driver's programs ask for its libraries
driver_links() {
    driver_files | while read -r file; do
        case $file in */libnvidia-ml.so.* | */libcuda.so.* | */libnvidia-cfg.so.*) echo "${file%%.so.*}.so.1 ${file##*/}" ;; esac
    done
}
