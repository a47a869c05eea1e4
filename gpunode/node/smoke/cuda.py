"""Use CUDA on each GPU: memory, and a kernel whose result is compared.  Python 3.6 and libcuda alone; on the node.

The one argument names the GPUs, `NAME=UUID;…`.  One process each: a GPU that hangs or fails keeps no other from its
answer.  Prints `gpunode-smoke-cuda:passed N`, or `… failed NAME: CALL: ERROR (CODE); …`, with `full` for `failed`
where memory alone is missing.
"""

import ctypes
import os
import signal
import sys
import time

LIMIT = 50  # seconds; the first start of a driver that is not persistent takes several for each GPU
AT_ONCE = 8
WORDS = 1024
# out[i] = 3 * out[i] + i, for every GPU from Kepler on: the driver compiles it
PTX = b"""
.version 5.0
.target sm_30
.address_size 64
.visible .entry gpunode(.param .u64 words) {
  .reg .u32 %r<6>;
  .reg .u64 %d<4>;
  ld.param.u64 %d1, [words];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %d2, %r4, 4;
  add.u64 %d3, %d1, %d2;
  ld.global.u32 %r5, [%d3];
  mad.lo.u32 %r5, %r5, 3, %r4;
  st.global.u32 [%d3], %r5;
  ret;
}
"""


class Failed(Exception):
    """A call of CUDA that ended with an error, or a wrong result."""


def use(uuid: str) -> None:
    """Raises Failed, OSError or AttributeError with what went wrong."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            named = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(named))
            raise Failed(f"{name.partition('_')[0]}: {(named.value or b'error').decode()} ({code})")

    count, device = ctypes.c_int(), ctypes.c_int()
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, size = ctypes.c_uint64(), ctypes.c_size_t(4 * WORDS)
    words = (ctypes.c_uint32 * WORDS)(*range(7, 7 + WORDS))
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    if count.value != 1:
        raise Failed(f"cuDeviceGetCount: {count.value} devices of that UUID")
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    call("cuMemcpyHtoD_v2", memory, words, size)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"gpunode")
    one, no = ctypes.c_uint(1), ctypes.c_void_p()
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    blocks, threads = ctypes.c_uint(WORDS // 256), ctypes.c_uint(256)
    call("cuLaunchKernel", kernel, blocks, one, one, threads, one, one, ctypes.c_uint(0), no, parameters, no)
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH_v2", words, memory, size)
    wrong = sum(word != 3 * (7 + n) + n for n, word in enumerate(words))
    if wrong:
        raise Failed(f"the kernel's result is wrong in {wrong} of {WORDS} places")
    call("cuCtxDestroy_v2", context)


def start(uuid: str) -> "tuple[int, int]":
    """(process, where it writes what went wrong: nothing where it ended well, after a last byte)."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        said = ""
        for number in (1, 2):  # one that is left behind must not hold what the parent's reader waits for
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        try:
            use(uuid)
        except (Failed, OSError, AttributeError) as error:
            said = str(error)
        os.write(writer, (said + "\n").encode())
        os._exit(0)
    os.close(writer)
    return process, reader


def outcome(process: int, reader: int, until: float) -> str:
    while not os.waitpid(process, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)  # one in the driver does not end by it, and is left behind
            return f"CUDA does not answer within {LIMIT} s"
        time.sleep(0.02)
    said = os.read(reader, 4000).decode(errors="replace")
    return said.strip() if said.endswith("\n") else "a program that starts CUDA was killed"


def main(gpus: "list[str]") -> None:
    failed = {}  # type: dict[str, list[str]]
    for first in range(0, len(gpus), AT_ONCE):
        until = time.monotonic() + LIMIT
        started = [(name, *start(uuid)) for name, uuid in (one.split("=", 1) for one in gpus[first : first + AT_ONCE])]
        for name, process, reader in started:
            said = outcome(process, reader, until)
            if said:
                failed.setdefault(said, []).append(name)
    text = "; ".join(f"{', '.join(names)}: {said}" for said, names in failed.items())
    word = "full " if all("OUT_OF_MEMORY" in said for said in failed) else "failed "
    print("gpunode-smoke-cuda:" + (word + text if failed else f"passed {len(gpus)}"))


if __name__ == "__main__":
    main(sys.argv[1].split(";"))
