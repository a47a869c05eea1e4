/* Adds two vectors on the first GPU by the driver's own library, and compares.  0: right, 1: wrong, 77: no such library. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#define N 4096
static const char PTX[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b) {\n"
    " .reg .u64 %p<4>; .reg .u32 %i<4>; .reg .f32 %f<3>;\n"
    " ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b];\n"
    " mov.u32 %i0, %ctaid.x; mov.u32 %i1, %ntid.x; mov.u32 %i2, %tid.x; mad.lo.u32 %i3, %i0, %i1, %i2;\n"
    " mul.wide.u32 %p2, %i3, 4; add.u64 %p3, %p0, %p2; add.u64 %p2, %p1, %p2;\n"
    " ld.global.f32 %f0, [%p3]; ld.global.f32 %f1, [%p2]; add.f32 %f2, %f0, %f1; st.global.f32 [%p3], %f2; ret;\n}\n";

static void *library;
static int failed(const char *what, int status) {
    if (status) printf("%s: CUDA error %d\n", what, status);
    return status;
}
#define CALL(name, ...) \
    do { \
        int (*f)() = (int (*)())dlsym(library, #name); \
        if (!f) { printf("libcuda.so.1 has no %s\n", #name); return 1; } \
        if (failed(#name, f(__VA_ARGS__))) return 1; \
    } while (0)

int main(void) {
    static float a[N], b[N];
    int device = 0;
    void *context, *module, *function;
    uint64_t x, y;
    void *arguments[] = {&x, &y};
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 77;
    for (int i = 0; i < N; i++) a[i] = i, b[i] = 2 * i;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuCtxCreate_v2, &context, 0, device);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &function, module, "add");
    CALL(cuMemAlloc_v2, &x, sizeof a);
    CALL(cuMemAlloc_v2, &y, sizeof b);
    CALL(cuMemcpyHtoD_v2, x, a, sizeof a);
    CALL(cuMemcpyHtoD_v2, y, b, sizeof b);
    CALL(cuLaunchKernel, function, N / 256, 1, 1, 256, 1, 1, 0, (void *)0, arguments, (void *)0);
    CALL(cuMemcpyDtoH_v2, a, x, sizeof a);
    for (int i = 0; i < N; i++)
        if (a[i] != 3.0f * i) return printf("element %d is %f\n", i, a[i]), 1;
    return printf("added %d elements on the GPU\n", N), 0;
}
