"""The ctypes structs and constants of lockstep._abi and lockstep._embed against include/lockstep, as a C compiler
sees it; exp and log of lockstep._frequencies against src/num/exp64.h.

Needs python3 and a C compiler, neither torch nor the library. Usage: check_abi.py INCLUDE_DIR [CC]"""

import ctypes
import importlib
import pathlib
import random
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
    "HEAD_DIM_MAX": "LS_HEAD_DIM_MAX", "EXPERTS_MAX": "LS_EXPERTS_MAX",
    "ROPE_PARTS": "LS_ROPE_PARTS", "EXACT": "LS_PROFILE_EXACT",
    "MMA16": "LS_PROFILE_MMA16",
}


def load(name):
    """A module of the package that needs neither torch nor numpy; the package imports nothing by itself."""
    sys.path.insert(0, str(ROOT / "python"))
    return importlib.import_module(f"lockstep.{name}")


def c_name(struct, prefix="ls"):
    return prefix + re.sub("([A-Z])", r"_\1", struct.__name__).lower()


def members_of(header, name):
    """Names of a struct's members in the header's text, in order."""
    body = re.search(r"typedef struct " + name + r" \{(.*?)\n\} " + name + ";", header, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    declarators = [part for line in body.split(";") for part in line.split(",") if part.strip()]
    return [re.search(r"(\w+)(\[\w+\])?\s*$", part).group(1) for part in declarators]


def evaluate(expressions, include, cc):
    """Values of integer C expressions."""
    lines = "".join(f'    printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    source = '#include <stdio.h>\n#include "lockstep/ops.h"\n#include "lockstep/train.h"\n'
    source += f"int main(void) {{\n{lines}    return 0;\n}}\n"
    with tempfile.TemporaryDirectory() as folder:
        file, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        file.write_text(source)
        subprocess.run([cc, "-std=c11", "-I", include, "-o", program, file], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


def check_exp64(cc):
    """Python's exp and log have the bits of those of C, over and around what frequencies need."""
    ported, draw = load("_frequencies"), random.Random(4)
    powers = [0.0, 1.0, -1.0, 0.5, 69.0] + [draw.uniform(-70.0, 70.0) for _ in range(4000)]
    numbers = [1.0, 2.0, 1e4, 5e5, 1e6, 1e30] + [10.0 ** draw.uniform(-30.0, 30.0) for _ in range(4000)]
    source = '#include <stdio.h>\n#include "num/exp64.h"\nint main(void) {\n    double x;\n' \
        '    while (scanf("%la", &x) == 1) printf("%a %a\\n", ls_exp64(x), x > 0.0 ? ls_log64(x) : 0.0);\n' \
        '    return 0;\n}\n'
    with tempfile.TemporaryDirectory() as folder:
        file, program = pathlib.Path(folder, "exp64.c"), pathlib.Path(folder, "exp64")
        file.write_text(source)
        subprocess.run([cc, "-std=c11", "-ffp-contract=off", "-I", str(ROOT / "src"), "-o", program, file], check=True)
        told = subprocess.run([program], input="\n".join(x.hex() for x in powers + numbers), check=True,
                              capture_output=True, text=True).stdout.splitlines()
    assert len(told) == len(powers) + len(numbers), len(told)
    values = [[float.fromhex(word) for word in line.split()] for line in told]
    wrong = [x for x, (want, _) in zip(powers, values) if ported.exp64(x) != want]
    wrong += [x for x, (_, want) in zip(numbers, values[len(powers):]) if ported.log64(x) != want]
    assert not wrong, f"{len(wrong)} of {len(told)}: {wrong[:4]}"


def main(include, cc="cc"):
    abi, embed, report = load("_abi"), load("_embed"), Report()
    header = "".join(pathlib.Path(include, "lockstep", file).read_text()
                     for file in ("lockstep.h", "ops_base.h", "ops_state.h", "ops.h", "engine.h", "train.h"))
    names = {c_name(struct, prefix): struct for module, prefix in ((embed, "lockstep"), (abi, "ls"))
             for struct in vars(module).values() if isinstance(struct, type) and issubclass(struct, ctypes.Structure)
             and struct is not ctypes.Structure and (module is abi or struct is not abi.Error)}

    def check_struct(name, struct):
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

    def check_choices():
        """Names whose place in a tuple is the value of a constant."""
        choices = {"FINISH": [None, *embed.FINISHES.values()], "LOGPROBS": embed.LOGPROBS,
                   "ADVANTAGE": embed.ADVANTAGES, **{name.upper(): names for name, names in embed.CHOICES.items()}}
        prefix = {"FINISH": "FINISH_", "NORM": "NORM_", "ADVANTAGE": "ADVANTAGE_"}
        pairs = [(f"LOCKSTEP_{prefix.get(kind, '')}{name.upper()}", value) for kind, names in choices.items()
                 for value, name in enumerate(names) if name is not None] + [("LOCKSTEP_ABI", embed.ABI)]
        got = evaluate([name for name, _ in pairs], include, cc)
        assert got == [value for _, value in pairs], list(zip(pairs, got))

    def check_functions():
        declared = set(re.findall(r"\blockstep_(\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
        assert declared == set(embed._CALLS) | set(embed._PLAIN), declared ^ (set(embed._CALLS) | set(embed._PLAIN))

    for name, struct in names.items():
        report.run(name, check_struct, name, struct)
    report.run("constants", check_constants)
    report.run("names of choices", check_choices)
    report.run("a Python function for each of C", check_functions)
    report.run("exp64 and log64", check_exp64, cc)
    report.run("an op for each argument struct", lambda: [
        re.search(rf"ls_op_{op}\(const ls_exec \*exec, const {c_name(args)} \*args,\s+ls_error \*err\)", header).group()
        for op, args in abi.OPS.items()])
    report.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
