"""Published cases in Triton, restated from the descriptions in their threads; writes triton.ptx beside itself.

Triton makes integers of 32 bits of ids, program numbers and strides unless told otherwise. Needs triton, no GPU."""
import pathlib

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def t01_bad(slots, state, stride, n: tl.constexpr):
    # vLLM 20838: the causal convolution's slot times stride
    slot = tl.load(slots + tl.program_id(0))
    lanes = tl.arange(0, n)
    tl.store(state + slot * stride + lanes, lanes.to(tl.float32))


@triton.jit
def t01_fixed(slots, state, stride, n: tl.constexpr):
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    lanes = tl.arange(0, n)
    tl.store(state + slot * stride + lanes, lanes.to(tl.float32))


@triton.jit
def t02_bad(x, out, stride, width, n: tl.constexpr):
    # Liger 1342: row times row stride
    row = tl.program_id(0)
    lanes = tl.arange(0, n)
    keep = lanes < width
    tl.store(out + row * stride + lanes, tl.load(x + row * stride + lanes, mask=keep), mask=keep)


@triton.jit
def t02_fixed(x, out, stride, width, n: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, n)
    keep = lanes < width
    tl.store(out + row * stride + lanes, tl.load(x + row * stride + lanes, mask=keep), mask=keep)


@triton.jit
def t03_bad(x, out, chunk_stride, head_stride, chunks, n: tl.constexpr):
    # mamba 987: program times chunk times stride, the offset carried round a loop
    lanes = tl.arange(0, n)
    offset = tl.program_id(1) * head_stride + lanes
    for _ in range(chunks):
        tl.store(out + offset, tl.load(x + offset) + 1.0)
        offset += chunk_stride


@triton.jit
def t03_fixed(x, out, chunk_stride, head_stride, chunks, n: tl.constexpr):
    lanes = tl.arange(0, n)
    offset = tl.program_id(1).to(tl.int64) * head_stride + lanes
    for _ in range(chunks):
        tl.store(out + offset, tl.load(x + offset) + 1.0)
        offset += chunk_stride


def compiled(kernel, types):
    source = ASTSource(fn=kernel, signature=types, constexprs={"n": 128})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]


def without_debug(text):
    lines = [line for line in text.splitlines() if not line.lstrip().startswith((".loc", ".file", "//"))]
    text = "\n".join(lines)
    at = text.find(".section")
    return (text if at < 0 else text[:at]) + "\n"


def main():
    pointer, narrow, constant = "*fp32", "i32", "constexpr"
    cases = [
        (t01_bad, t01_fixed, {"slots": "*i32", "state": pointer, "stride": narrow, "n": constant}),
        (t02_bad, t02_fixed, {"x": pointer, "out": pointer, "stride": narrow, "width": narrow, "n": constant}),
        (t03_bad, t03_fixed, {"x": pointer, "out": pointer, "chunk_stride": narrow, "head_stride": narrow,
                              "chunks": narrow, "n": constant}),
    ]
    text = "".join(without_debug(compiled(kernel, types)) for bad, fixed, types in cases for kernel in (bad, fixed))
    pathlib.Path(__file__).with_name("triton.ptx").write_text(text)


if __name__ == "__main__":
    main()
