/*
 * The lab's libcuda.so.1: as much of it as gpunode's own program calls (node/smoke/cuda.py).  There is no GPU: memory is
 * the process's, and the only kernel, which that program brings, is done here.  On a node /lab/cuda may hold
 * lines `FUNCTION CODE UUID` (`all`): that call ends with that error, never (-1), or by a signal (-9).
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int answer(const char *function)
{
    char name[64], uuid[128];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *root = getenv("GPUNODE_LAB_ROOT");
    char path[512];
    int code = 0;
    FILE *file;
    snprintf(path, sizeof path, "%s/cuda", root ? root : "/lab");
    file = fopen(path, "r");
    if (!file)
        return 0;
    while (fscanf(file, "%63s %d %127s", name, &code, uuid) == 3) {
        if (!strcmp(name, function) && (!strcmp(uuid, "all") || (visible && !strcmp(uuid, visible))))
            break;
        code = 0;
    }
    fclose(file);
    if (code < 0) // it hangs, or dies of a signal
        return code == -1 ? (int)pause() : raise(-code);
    return code;
}

EXPORT int cuInit(unsigned flags) { return answer("cuInit"); }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return answer("cuDeviceGetCount"); }
EXPORT int cuDeviceGet(int *device, int number) { *device = number; return number ? 101 : answer("cuDeviceGet"); }
EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = (void *)1; return answer("cuCtxCreate"); }
EXPORT int cuCtxDestroy_v2(void *context) { return answer("cuCtxDestroy"); }
EXPORT int cuCtxSynchronize(void) { return answer("cuCtxSynchronize"); }

EXPORT int cuMemAlloc_v2(uint64_t *memory, size_t size)
{
    *memory = (uintptr_t)malloc(size);
    return *memory ? answer("cuMemAlloc") : 2;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    memcpy((void *)(uintptr_t)to, from, size);
    return answer("cuMemcpyHtoD");
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    memcpy(to, (void *)(uintptr_t)from, size);
    return answer("cuMemcpyDtoH");
}

EXPORT int cuModuleLoadData(void **module, const char *ptx)
{
    *module = (void *)1;
    return strstr(ptx, ".entry gpunode(") ? answer("cuModuleLoadData") : 218;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = (void *)1;
    return strcmp(name, "gpunode") ? 500 : answer("cuModuleGetFunction");
}

EXPORT int cuLaunchKernel(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c,
                          unsigned shared, void *stream, void **parameters, void **extra)
{
    int code = answer("cuLaunchKernel");
    uint32_t *words = (uint32_t *)(uintptr_t) * (uint64_t *)parameters[0];
    for (uint32_t n = 0; !code && n < blocks * threads; n++)
        words[n] = 3 * words[n] + n;
    return code;
}

EXPORT int cuGetErrorName(int code, const char **name)
{
    static const struct { int code; const char *name; } names[] = {
        {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {3, "CUDA_ERROR_NOT_INITIALIZED"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {100, "CUDA_ERROR_NO_DEVICE"}, {802, "CUDA_ERROR_SYSTEM_NOT_READY"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"}, {999, "CUDA_ERROR_UNKNOWN"},
    };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (names[n].code == code) {
            *name = names[n].name;
            return 0;
        }
    *name = NULL;
    return 1;
}
