"""Work for one GPU by the CUDA driver library alone: `python cuda_work.py UUID SECONDS`, run by load.py.

Every thread runs a chain of integer and floating-point operations; the integers of some threads are computed again
here, so that a GPU that computes wrongly is seen.  Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

BLOCKS, THREADS, ROUNDS = 2048, 256, 1 << 15
CHECKED = (0, 1, 4097, BLOCKS * THREADS - 1)  # threads whose result is computed again
MULTIPLIER, INCREMENT, SEED = 1664525, 1013904223, 2654435769

# virtual architecture 5.0: every driver from 343 on compiles it for its GPU
KERNEL = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .f32 %f<6>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.lo.s32 %r6, %r5, SEED;
    mov.u32 %r7, 0;
    cvt.rn.f32.u32 %f1, %r5;
    mov.f32 %f2, 0f3F7FFF58;
    mov.f32 %f3, 0f3DCCCCCD;
    mov.f32 %f4, %f3;
LOOP:
    mad.lo.s32 %r6, %r6, MULTIPLIER, INCREMENT;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f4, %f4, %f2, %f1;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f4, %f4, %f2, %f3;
    add.s32 %r7, %r7, 1;
    setp.lt.u32 %p1, %r7, %r1;
    @%p1 bra LOOP;
    add.f32 %f5, %f1, %f4;
    setp.eq.f32 %p1, %f5, 0fFF800000;
    selp.b32 %r8, 1, 0, %p1;
    add.s32 %r9, %r6, %r8;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r9;
    ret;
}
"""


def kernel() -> bytes:
    """The PTX with its numbers in place."""
    numbers = {"SEED": SEED, "MULTIPLIER": MULTIPLIER, "INCREMENT": INCREMENT}
    text = KERNEL
    for name, number in numbers.items():
        text = text.replace(name, str(number - (1 << 32) if number >> 31 else number))
    return text.encode() + b"\0"


def expected(thread: int, rounds: int) -> int:
    """What the integers of one thread come to."""
    value = thread * SEED & 0xFFFFFFFF
    for _ in range(rounds):
        value = (value * MULTIPLIER + INCREMENT) & 0xFFFFFFFF
    return value


class CudaError(Exception):
    """A call of the driver library that failed."""


class Driver:
    """libcuda.so.1, its errors as exceptions."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __call__(self, name: str, *values: Any) -> None:
        code = getattr(self.library, name)(*values)
        if code:
            words = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(words))
            raise CudaError(f"{name}: {(words.value or b'').decode() or f'error {code}'}")


def work(cuda: Driver, seconds: float) -> dict[str, Any]:
    """Run the kernel on the first visible GPU for so long; the results of each launch are compared."""
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    function, memory = ctypes.c_void_p(), ctypes.c_uint64()
    cuda("cuInit", 0)
    cuda("cuDeviceGet", ctypes.byref(device), 0)
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        cuda("cuCtxSetCurrent", context)
        cuda("cuModuleLoadData", ctypes.byref(module), kernel())
        cuda("cuModuleGetFunction", ctypes.byref(function), module, b"work")
        size = BLOCKS * THREADS
        cuda("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * size))
        rounds = ctypes.c_uint32(ROUNDS)
        given = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in (memory, rounds)))
        wanted = {thread: expected(thread, ROUNDS) for thread in CHECKED}
        result = (ctypes.c_uint32 * size)()
        launches, wrong, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            cuda("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, given, None)
            cuda("cuCtxSynchronize")
            launches += 1
            if launches == 1 or launches % 16 == 0:
                cuda("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(4 * size))
                wrong += sum(result[thread] != value for thread, value in wanted.items())
        cuda("cuMemFree_v2", memory)
        return {"launches": launches, "wrong": wrong}
    finally:
        cuda("cuDevicePrimaryCtxRelease_v2", device)


def main(uuid: str, seconds: str) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as cause:
        print(json.dumps({"error": "", "missing": str(cause)}))
        return 3
    try:
        done = work(Driver(library), float(seconds))
        error = f"{done['wrong']} wrong results" if done["wrong"] else "" if done["launches"] else "no launch ended"
    except (CudaError, AttributeError) as cause:
        done, error = {}, str(cause)
    print(json.dumps({"error": error, **done}))
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
