#!/bin/sh
# At the first boot with a GPU of a machine that was prepared without one: load the driver, prove it, write down what
# came of it, and stay away from then on.  Run by gpunode-firstboot.service, never by a controller.
# Runs behind common.sh.  Request files: programs of their own, `activate`, `cdi` and `smoke`.
#
# The record: lines `status waiting|passed|failed`, `at TIME`, `boot_id ID`, `ran SHA256` (of the program), `message
# TEXT`, and `check ID|STATUS|MESSAGE|FIX` for each check.  The probe reads it.

RECORD=$GPUNODE_STATE/first-boot
UNIT=gpunode-firstboot.service
checks=$GPUNODE_IN/.checks
: >"$checks"

# the_end STATUS MESSAGE: the record as a whole, the same words to the journal of systemd, and exit
the_end() {
  {
    printf 'status %s\nat %s\nboot_id %s\nran %s\nmessage %s\n' "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
      "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" "$(sha256sum </usr/lib/gpunode/first-boot | cut -d ' ' -f 1)" "$2"
    sed 's/^/check /' "$checks"
  } >"$RECORD.new" && sync "$RECORD.new" 2>/dev/null
  mv -f "$RECORD.new" "$RECORD" || finish failed "cannot write $RECORD" "make room on the file system of /var"
  sed 's/^/check /' "$checks"
  case $1 in failed) finish failed "$2" "it tries again at the next boot; or: systemctl start $UNIT" ;; esac
  finish changed "$2"
}

# part NAME: runs that program; what it printed is in .NAME, and goes to the journal but for the checks
part() {
  [ -e "$GPUNODE_IN/$1" ] || return 0
  sh "$GPUNODE_IN/$1" >"$GPUNODE_IN/.$1" 2>&1 </dev/null
  result=$?
  grep -v "^gpunode.check" "$GPUNODE_IN/.$1"
  return "$result"
}

# reported NAME KEY: the last value of that key that a part printed
reported() { sed -n "s/^gpunode	$2	//p" "$GPUNODE_IN/.$1" | tail -n 1; }

need_root
(umask 077 && mkdir -p "$GPUNODE_STATE") || finish failed "cannot create $GPUNODE_STATE" "make /var writable"
count=$(pci_gpus)
[ "$count" -gt 0 ] || the_end waiting "no NVIDIA GPU on PCI at this boot: waiting for the next one"
part activate || the_end failed "the driver does not load: $(reported activate message)"
why=$(reported activate reboot)
[ -z "$why" ] || the_end failed "the driver is not loaded yet, the machine needs another boot: $why"
part cdi || echo "cdi.specification|failed|$(reported cdi message | tr '|' '/')|$(reported cdi fix | tr '|' '/')" >>"$checks"
part smoke || echo "smoke.ran|failed|$(reported smoke message | tr '|' '/')|" >>"$checks"
[ ! -e "$GPUNODE_IN/.smoke" ] || sed -n 's/^gpunode	check	//p' "$GPUNODE_IN/.smoke" >>"$checks"
bad=$(grep -c '^[^|]*|failed|' "$checks")
[ "$bad" = 0 ] || the_end failed "$bad of $(wc -l <"$checks") checks failed"
systemctl --no-reload disable "$UNIT" >/dev/null 2>&1
the_end passed "driver $(cat /sys/module/nvidia/version 2>/dev/null) on $count GPU(s), $(grep -c '|passed|' "$checks") checks passed"
