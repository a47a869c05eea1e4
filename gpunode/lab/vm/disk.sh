#!/bin/sh
# disk.sh TREE.tar DISK MIB: a disk with an EFI system partition and an ext4, from a tree; no loop device is needed.
set -eu
export LC_ALL=C.UTF-8
tree=$1 disk=$2 size=$3
esp=128
tar=$(mktemp -d)
tar -C "$tar" -xf "$tree" --wildcards ./etc/os-release ./usr/lib/os-release ./usr/lib/shim './usr/lib/grub/x86_64-efi-signed'
id=$(sed -n 's/^ID=//p' "$tar/usr/lib/os-release")
rm -f "$disk"
truncate -s "${size}M" "$disk"
printf 'label: gpt\nstart=1MiB, size=%sMiB, type=uefi\ntype=linux\n' "$esp" | sfdisk --quiet "$disk"
mkfs.vfat -F 16 -n ESP --offset 2048 "$disk" $((esp * 1024)) >/dev/null
printf 'search --no-floppy --label root --set=root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n' >"$tar/grub.cfg"
first() {
    for file in "$@"; do [ ! -e "$file" ] || { echo "$file" && return; }; done
}
export MTOOLS_SKIP_CHECK=1
image="$disk@@1M"
mmd -i "$image" ::EFI ::EFI/BOOT "::EFI/$id"
for folder in BOOT "$id"; do
    shim=shimx64.efi
    [ "$folder" != BOOT ] || shim=BOOTX64.EFI
    mcopy -i "$image" "$(first "$tar"/usr/lib/shim/shimx64.efi.signed.latest "$tar"/usr/lib/shim/shimx64.efi.signed)" "::EFI/$folder/$shim"
    mcopy -i "$image" "$(first "$tar"/usr/lib/shim/mmx64.efi.signed "$tar"/usr/lib/shim/mmx64.efi)" "::EFI/$folder/mmx64.efi"
    mcopy -i "$image" "$tar/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed" "::EFI/$folder/grubx64.efi"
    mcopy -i "$image" "$tar/grub.cfg" "::EFI/$folder/grub.cfg"
done
# features that the GRUB of an older release does not know
mke2fs -q -t ext4 -L root -O ^orphan_file,^metadata_csum_seed -E offset=$(((esp + 1) * 1048576)) -d "$tree" "$disk" \
    "$(((size - esp - 2) * 1024))k"
rm -rf "$tar"
