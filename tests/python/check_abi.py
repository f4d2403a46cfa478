"""The ctypes structs and constants of lockstep._abi against include/lockstep/ops.h, as a C compiler sees it.

Needs python3 and a C compiler, neither torch nor the library. Usage: check_abi.py INCLUDE_DIR [CC]"""

import ctypes
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

from harness import Report

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONSTANTS = {
    "CPU": "LS_BACKEND_CPU", "CUDA": "LS_BACKEND_CUDA", "F32": "LS_F32", "BF16": "LS_BF16", "F16": "LS_F16",
    "LOGPROB_LEAF": "LS_LOGPROB_LEAF", "LOGPROB_VOCAB_MAX": "LS_LOGPROB_VOCAB_MAX",
    "CONV_WIDTH_MAX": "LS_CONV_WIDTH_MAX", "SCAN_STATES_MAX": "LS_SCAN_STATES_MAX",
}


def load_abi():
    """_abi.py alone: the package around it imports torch."""
    spec = importlib.util.spec_from_file_location("_abi", ROOT / "python/lockstep/_abi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def c_name(struct):
    return "ls" + re.sub("([A-Z])", r"_\1", struct.__name__).lower()


def members_of(header, name):
    """Names of a struct's members in the header's text, in order."""
    body = re.search(r"typedef struct " + name + r" \{(.*?)\n\} " + name + ";", header, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    declarators = [part for line in body.split(";") for part in line.split(",") if part.strip()]
    return [re.search(r"(\w+)(\[\w+\])?\s*$", part).group(1) for part in declarators]


def evaluate(expressions, include, cc):
    """Values of integer C expressions."""
    lines = "".join(f'    printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    source = f'#include <stdio.h>\n#include "lockstep/ops.h"\nint main(void) {{\n{lines}    return 0;\n}}\n'
    with tempfile.TemporaryDirectory() as folder:
        file, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        file.write_text(source)
        subprocess.run([cc, "-std=c11", "-I", include, "-o", program, file], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


def main(include, cc="cc"):
    abi, report = load_abi(), Report()
    header = "".join(pathlib.Path(include, "lockstep", file).read_text() for file in ("lockstep.h", "ops.h"))
    structs = [value for value in vars(abi).values()
               if isinstance(value, type) and issubclass(value, ctypes.Structure) and value is not ctypes.Structure]

    def check_struct(struct):
        name = c_name(struct)
        fields = [field for field, _ in struct._fields_]
        assert fields == members_of(header, name), f"{fields}, the header has {members_of(header, name)}"
        expressions = [f"sizeof({name})"]
        for field in fields:
            expressions += [f"offsetof({name}, {field})", f"sizeof((({name} *)0)->{field})"]
        expected = [ctypes.sizeof(struct)]
        for field in fields:
            expected += [getattr(struct, field).offset, getattr(struct, field).size]
        got = evaluate(expressions, include, cc)
        different = [f"{e}: C {c}, ctypes {p}" for e, c, p in zip(expressions, got, expected) if c != p]
        assert not different, different

    def check_constants():
        names = list(CONSTANTS) + [f"LS_ERR_{name.upper()}" for name in abi.STATUS_NAMES[1:]]
        got = evaluate(list(CONSTANTS.values()) + names[len(CONSTANTS):], include, cc)
        expected = [getattr(abi, name) for name in CONSTANTS] + list(range(1, len(abi.STATUS_NAMES)))
        assert got == expected, list(zip(names, got, expected))

    for struct in structs:
        report.run(c_name(struct), check_struct, struct)
    report.run("constants", check_constants)
    report.run("an op for each argument struct", lambda: [
        re.search(rf"ls_op_{op}\(const ls_exec \*exec, const {c_name(args)} \*args, ls_error \*err\)", header).group()
        for op, args in abi.OPS.items()])
    report.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
