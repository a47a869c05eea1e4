# Lab stand-in for MIG: what the driver knows of it, read by the nvidia-smi stand-in and by kernel.sh.
# /lab/standin-mig has a profile of a GPU a line (hardware.py); /lab/mig/SLOT has `current` and `pending`, and in `gi` a
# file a GPU instance: `PROFILE ID START SIZE`, then a line a compute instance.  As with the driver, the mode of an A100 or
# A30 waits for a reset and outlives a reboot, that of later GPUs does neither; instances outlive nothing.
# shellcheck shell=sh disable=SC2034 # `only` is read by nvidia-smi's `each`
lab=${GPUNODE_LAB_ROOT:-/lab}
profiles=$lab/standin-mig

# can SLOT: it has MIG
can() { [ -r "$profiles" ] && awk -F '\t' -v slot="$1" '$1 == slot { found = 1 } END { exit !found }' "$profiles"; }

kept() { awk -F '\t' -v slot="$1" '$1 == slot { exit $2 != "kept" }' "$profiles"; }

# mig_mode SLOT current|pending
mig_mode() {
    can "$1" || { echo '[N/A]'; return; }
    cat "$lab/mig/$1/$2" 2>/dev/null || echo Disabled
}

# put_mode SLOT current|pending VALUE
put_mode() { mkdir -p "$lab/mig/$1/gi" && echo "$3" >"$lab/mig/$1/$2"; }

bus() { echo "0000$1" | tr a-f A-F; }

minor_of() { sed -n 's/^Device Minor:[^0-9]*//p' "$lab/proc/driver/nvidia/gpus/$1/information"; }

# holds PATH: some process has it open.  One ls for all: a readlink for each open file would take seconds.
holds() {
    # shellcheck disable=SC2010,SC2012
    ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q " -> $1\$"
}

# mig_set SLOT 0|1: what `nvidia-smi -mig` does and says
mig_set() {
    if [ "$2" = 1 ]; then word=Enabled verb=enable; else word=Disabled verb=disable; fi
    can "$1" || { echo "Unable to $verb MIG Mode for GPU $(bus "$1"): Not Supported"; echo "Treating as warning and moving on."; return 0; }
    put_mode "$1" pending "$word"
    [ "$(mig_mode "$1" current)" != "$word" ] || { echo "$word MIG Mode for GPU $(bus "$1")"; return; }
    if [ "$2" = 0 ] && [ -n "$(ls "$lab/mig/$1/gi")" ]; then
        put_mode "$1" pending Enabled
        echo "Unable to disable MIG Mode for GPU $(bus "$1"): In use by another client"
        return 19
    fi
    if holds "/dev/nvidia$(minor_of "$1")"; then
        echo "Warning: MIG mode is in pending $verb state for GPU $(bus "$1"):In use by another client"
        echo "$(bus "$1") is currently being used by one or more other processes (e.g. CUDA application or a monitoring application such as another instance of nvidia-smi). Please first kill all processes using the device and retry the command or reboot the system to make MIG mode effective."
    elif kept "$1" && [ -e "$lab/no-gpu-reset" ]; then
        echo "Warning: MIG mode is in pending $verb state for GPU $(bus "$1"):Not Supported"
        echo "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU $(bus "$1")"
    else
        put_mode "$1" current "$word"
        echo "$word MIG Mode for GPU $(bus "$1")"
    fi
}

# mig_reset SLOT: what `nvidia-smi --gpu-reset` does; /lab/no-gpu-reset is a hypervisor that forbids it
mig_reset() {
    if [ -e "$lab/no-gpu-reset" ]; then
        echo "Resetting GPU $(bus "$1") is not supported."
        return 3
    fi
    if holds "/dev/nvidia$(minor_of "$1")"; then
        echo "GPU $(bus "$1") is currently in use by another process."
        return 19
    fi
    ! can "$1" || { forget_instances "$1" && put_mode "$1" current "$(mig_mode "$1" pending)"; }
    echo "GPU $(bus "$1") was successfully reset."
}

# mig_start SLOT: the driver takes the GPU
mig_start() {
    can "$1" || return 0
    forget_instances "$1"
    kept "$1" || put_mode "$1" pending Disabled
    put_mode "$1" current "$(mig_mode "$1" pending)"
}

forget_instances() {
    mkdir -p "$lab/mig/$1/gi"
    for file in "$lab/mig/$1/gi"/*; do
        [ ! -e "$file" ] || destroy_instance "$1" "${file##*/}"
    done
}

# ---------------------------------------------------------------- instances

# capability SLOT GI [CI]: its number among /dev/nvidia-caps
capability() {
    gpu_minor=$(minor_of "$1")
    echo $((3 + ${gpu_minor:-0} * 150 + $2 * 10 + ${3:--1} + 1))
}

# grant SLOT GI [CI]: file and device that stand for the right to use it
grant() {
    folder=$lab/proc/driver/nvidia/capabilities/gpu$(minor_of "$1")/mig/gi$2${3:+/ci$3}
    cap=$(capability "$@")
    mkdir -p "$folder" /dev/nvidia-caps
    printf 'DeviceFileMinor: %s\nDeviceFileMode: 292\nDeviceFileModify: 1\n' "$cap" >"$folder/access"
    mknod -m 444 "/dev/nvidia-caps/nvidia-cap$cap" c 511 "$cap" 2>/dev/null || : >"/dev/nvidia-caps/nvidia-cap$cap"
}

destroy_instance() {
    rm -rf "$lab/mig/$1/gi/$2" "$lab/proc/driver/nvidia/capabilities/gpu$(minor_of "$1")/mig/gi$2"
    rm -f "/dev/nvidia-caps/nvidia-cap$(capability "$1" "$2")" "/dev/nvidia-caps/nvidia-cap$(capability "$1" "$2" 0)"
}

# room SLOT PROFILE START: it does not overlap, and enough of every engine is left
room() {
    cat "$lab/mig/$1/gi"/* 2>/dev/null | awk -F '\t' -v slot="$1" -v want="$2" -v start="$3" '
        FILENAME == ARGV[1] { if ($1 == slot) { compute[$3] = $5; size[$3] = $6; ofa[$3] = $8; media[$3] = $9; most[$3] = $10; split($12, total, " ") } next }
        { split($0, one, " "); if (!(one[1] in size)) next
          n[one[1]]++; used_c += compute[one[1]]; used_o += ofa[one[1]]; used_m += media[one[1]]
          for (i = 0; i < one[4]; i++) taken[one[3] + i] }
        END { for (i = 0; i < size[want]; i++) if ((start + i) in taken) exit 1
          exit n[want] >= most[want] || used_c + compute[want] > total[1] || used_m + media[want] > total[3] || used_o + ofa[want] > total[4] }' "$profiles" -
}

row() { awk -F '\t' -v slot="$1" -v word="$2" -v n="$3" '$1 == slot && ($3 == word || $4 == word) { print $n; exit }' "$profiles"; }

# create_instance SLOT INDEX TUPLE
create_instance() {
    word=${3%%:*}
    name=$(row "$1" "$word" 3) id=$(row "$1" "$word" 4)
    if [ -z "$name" ]; then
        echo "Invalid GPU instance profile: $word"
        return 2
    fi
    starts=$(row "$1" "$word" 7)
    case $3 in *:*) starts=$(echo " $starts " | grep -o " ${3#*:} " | head -n 1) ;; esac
    for start in $starts; do
        room "$1" "$name" "$start" || continue
        number=1
        while [ -e "$lab/mig/$1/gi/$number" ]; do number=$((number + 1)); done
        echo "$name $id $start $(row "$1" "$word" 6)" >"$lab/mig/$1/gi/$number"
        grant "$1" "$number"
        printf 'Successfully created GPU instance ID %2s on GPU %2s using profile MIG %s (ID %2s)\n' "$number" "$2" "$name" "$id"
        [ -z "$whole" ] || create_compute "$1" "$2" "$number"
        return
    done
    printf 'Unable to create a GPU instance on GPU %2s using profile %s: Insufficient Resources\n' "$2" "$id"
    echo 'Failed to create GPU instances: Insufficient Resources'
    return 23
}

create_compute() {
    read -r name _ <"$lab/mig/$1/gi/$3"
    echo 0 >>"$lab/mig/$1/gi/$3"
    grant "$1" "$3" 0
    printf 'Successfully created compute instance ID  0 on GPU %2s GPU instance ID %2s using profile MIG %s (ID  0)\n' "$2" "$3" "$name"
}

# destroy SLOT INDEX gpu|compute: of the instance that -gi names, or of all
destroy() {
    for file in "$lab/mig/$1/gi"/*; do
        number=${file##*/}
        [ -e "$file" ] && [ "${only_gi:-$number}" = "$number" ] || continue
        if holds "/dev/nvidia-caps/nvidia-cap$(capability "$1" "$number")" || holds "/dev/nvidia-caps/nvidia-cap$(capability "$1" "$number" 0)"; then
            printf 'Unable to destroy %s instance ID %2s from GPU %2s: In use by another client\n' "$([ "$3" = gpu ] && echo GPU || echo compute)" "$number" "$2"
            return 19
        fi
        if [ "$3" = compute ]; then
            [ "$(wc -l <"$file")" -gt 1 ] || continue
            head -n 1 "$file" >"$file.new" && mv "$file.new" "$file"
            rm -rf "$lab/proc/driver/nvidia/capabilities/gpu$(minor_of "$1")/mig/gi$number/ci0"
            printf 'Successfully destroyed compute instance ID  0 from GPU %2s GPU instance ID %2s\n' "$2" "$number"
        elif [ "$(wc -l <"$file")" -gt 1 ]; then
            printf 'Unable to destroy GPU instance ID %2s from GPU %2s: In use by another client\n' "$number" "$2"
            echo 'Failed to destroy GPU instances: In use by another client'
            return 19
        else
            destroy_instance "$1" "$number"
            printf 'Successfully destroyed GPU instance ID %2s from GPU %2s\n' "$number" "$2"
        fi
    done
}

# ---------------------------------------------------------------- tables, in nvidia-smi's layout

instance_rows() {
    for file in "$lab/mig/$1/gi"/*; do
        [ -e "$file" ] || continue
        read -r name id start size <"$file"
        printf '|%4s  MIG %-15s%3s%9s%11s:%-6s|\n' "$2" "$name" "$id" "${file##*/}" "$start" "$size"
        echo '+-------------------------------------------------------+'
    done
}

compute_rows() {
    for file in "$lab/mig/$1/gi"/*; do
        [ -e "$file" ] && [ "$(wc -l <"$file")" -gt 1 ] || continue
        read -r name _ _ _ <"$file"
        printf '|%4s%7s       MIG %-17s0         0          0:%-6s|\n' "$2" "${file##*/}" "$name" "$(row "$1" "$name" 5)"
        echo '+--------------------------------------------------------------------+'
    done
}

profile_rows() {
    awk -F '\t' -v slot="$1" '$1 == slot { print $3, $4, $5, $6, $10, $11 }' "$profiles" | while read -r name id compute size most gib; do
        used=$(cat "$lab/mig/$1/gi"/* 2>/dev/null | grep -c "^$name ")
        printf '|%4s  MIG %-13s%3s%6s/%-7s%6s       No%7s%6s%6s   |\n' "$2" "$name" "$id" $((most - used)) "$most" "$gib" $((compute * 16)) 0 0
        printf '|%62s%6s%6s   |\n' "$compute" "$size" 0
        echo '+-----------------------------------------------------------------------------+'
    done
}

place_rows() {
    awk -F '\t' -v slot="$1" -v gpu="$2" '$1 == slot { starts = $7; word = gsub(/ /, ",", starts) ? "s:" : " :"; printf "GPU %2s Profile ID %2s Placement%s {%s}:%s\n", gpu, $4, word, starts, $6 }' "$profiles"
}

# table TITLE… then the rows of FUNCTION for every GPU that it is about
table() {
    function=$1
    shift
    rows=$(each with_mig)
    [ -n "$rows" ] || { echo "No $what found: Not Found"; return 6; }
    for line in "$@"; do echo "$line"; done
    echo "$rows"
}

# without_mig VERB: what it says where it is about no GPU
without_mig() {
    case $1:$modern in
    lgip:1 | lgipp:1) echo 'No MIG-supported devices found.' && exit 6 ;;
    lgi:1 | lci:1) echo 'No MIG-enabled devices found.' && exit 0 ;;
    esac
    echo 'No MIG-enabled devices found.'
    exit 6
}

# with_mig SLOT INDEX: FUNCTION, where MIG is on; of profiles, from 550 on, where it can be
with_mig() {
    case $verb:$modern in
    lgip:1 | lgipp:1) [ -z "$(ill "$1" reset)" ] && cut -f 1 "$profiles" 2>/dev/null | grep -qx "$1" ;;
    *) [ "$(mig_mode "$1" current)" = Enabled ] ;;
    esac || return 0
    "$function" "$1" "$2"
}

# mig_command ARGUMENT…: nvidia-smi mig …
mig_command() {
    verb='' tuples='' whole='' only_gi='' status=0
    while [ $# -gt 0 ]; do
        case $1 in
        -i | --id) only=$2; shift ;;
        -gi | --gpu-instance-id) only_gi=$2; shift ;;
        -ci | --compute-instance-id) shift ;;
        -cgi | --create-gpu-instance) verb=cgi tuples=$2; shift ;;
        -C | --default-compute-instance) whole=1 ;;
        -lgip | -lgipp | -lgi | -lci | -dci | -dgi | -cci) verb=${1#-} ;;
        *)
            echo "Option $1 is not recognized. (gpunode lab stand-in)"
            exit 2
            ;;
        esac
        shift
    done
    function='echo' modern=$((${branch:-550} >= 550))
    [ -n "$(each with_mig)" ] || without_mig "$verb"
    case $verb in
    lgi) what='GPU instances' && table instance_rows \
        '+-------------------------------------------------------+' '| GPU instances:                                        |' \
        '| GPU   Name             Profile  Instance   Placement  |' '|                          ID       ID       Start:Size |' \
        '|=======================================================|' ;;
    lci) what='compute instances' && table compute_rows \
        '+--------------------------------------------------------------------+' '| Compute instances:                                                 |' \
        '| GPU     GPU       Name             Profile   Instance   Placement  |' '|       Instance                       ID        ID       Start:Size |' \
        '|         ID                                                         |' '|====================================================================|' ;;
    lgip) what='GPU instance profiles' && table profile_rows \
        '+-----------------------------------------------------------------------------+' '| GPU instance profiles:                                                      |' \
        '| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |' '|                              Free/Total   GiB              CE    JPEG  OFA  |' \
        '|=============================================================================|' ;;
    lgipp) function=place_rows && each with_mig ;;
    cgi) each create_all ;;
    cci) each compute_all ;;
    dci) each destroy_computes ;;
    dgi) each destroy_gpus ;;
    esac || status=$?
    exit "$status"
}

create_all() { for tuple in $(echo "$tuples" | tr , ' '); do create_instance "$1" "$2" "$tuple" || exit; done; }
compute_all() { create_compute "$1" "$2" "$only_gi"; }
destroy_computes() { destroy "$1" "$2" compute || exit; }
destroy_gpus() { destroy "$1" "$2" gpu || exit; }

# mig_uuid SLOT GI: of the device that the instance with its compute instance is
mig_uuid() {
    printf 'MIG-'
    printf '%s %s' "$1" "$2" | md5sum | sed 's/\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\).*/\1-\2-\3-\4-\5/'
}

# all_minors GPUS: /proc/driver/nvidia-caps/mig-minors of a driver that has so many: those that capability gives
all_minors() {
    awk -v gpus="$1" 'BEGIN {
        print "config 1"; print "monitor 2"
        for (gpu = 0; gpu < gpus; gpu++) for (gi = 0; gi < 15; gi++) {
            number = 3 + gpu * 150 + gi * 10
            printf "gpu%d/gi%d/access %d\n", gpu, gi, number
            for (ci = 0; ci < 8; ci++) printf "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, number + ci + 1
        }
    }'
}

# mig_devices SLOT INDEX: the lines of `nvidia-smi -L` below a GPU
mig_devices() {
    device=0
    for file in "$lab/mig/$1/gi"/*; do
        [ -e "$file" ] && [ "$(wc -l <"$file")" -gt 1 ] || continue
        read -r name _ _ _ <"$file"
        printf '  MIG %-16s Device %2s: (UUID: %s)\n' "$name" "$device" "$(mig_uuid "$1" "${file##*/}")"
        device=$((device + 1))
    done
}
