/*
 * The lab's libnvidia-cfg.so.1: as much of it as NVIDIA's real nvidia-persistenced asks.  The GPUs are those of
 * /proc/driver/nvidia/gpus; who opens one holds its device file, so that the lab's rmmod sees it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct pci { int domain, bus, slot, function; };

EXPORT int nvCfgGetPciDevices(int *count, struct pci **devices)
{
    DIR *folder = access("/dev/nvidiactl", F_OK) ? NULL : opendir("/proc/driver/nvidia/gpus");
    struct dirent *entry;
    *count = 0;
    *devices = calloc(256, sizeof **devices);
    if (!folder || !*devices)
        return 0;
    while (*count < 256 && (entry = readdir(folder))) {
        struct pci *next = *devices + *count;
        if (sscanf(entry->d_name, "%x:%x:%x.%x", (unsigned *)&next->domain, (unsigned *)&next->bus, (unsigned *)&next->slot,
                   (unsigned *)&next->function) == 4)
            ++*count;
    }
    closedir(folder);
    return 1;
}

EXPORT int nvCfgOpenPciDevice(int domain, int bus, int slot, int function, void **handle)
{
    char name[64];
    int minor = -1, file;
    snprintf(name, sizeof name, "/proc/driver/nvidia/gpus/%04x:%02x:%02x.%x/information", domain, bus, slot, function);
    FILE *information = fopen(name, "r");
    for (char line[128]; information && fgets(line, sizeof line, information);)
        sscanf(line, "Device Minor: %d", &minor);
    if (information)
        fclose(information);
    snprintf(name, sizeof name, "/dev/nvidia%d", minor);
    file = minor < 0 ? -1 : open(name, O_PATH | O_CLOEXEC);
    *handle = (void *)(intptr_t)file;
    return file > 0;
}

EXPORT int nvCfgCloseDevice(void *handle)
{
    return !close((int)(intptr_t)handle);
}

/* 0: done */
EXPORT unsigned nvCfgEnableUVMPersistence(void *handle) { return (void)handle, 0; }
EXPORT unsigned nvCfgDisableUVMPersistence(void *handle) { return (void)handle, 0; }
