"""The third list of suspects: one planted fault each, in ring.py (numpy) and replay.py (transformers), or none.

A row of TABLE: family, fault with its number, model, further arguments, threshold. Names, halves and `right` are as in
../fresh/fresh_cases.py; RIGHT_HERE says what else may be answered. Numbers of issues stand beside the faults.
"""

import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fresh"))
from fresh_cases import FORMULA, OTHER_STATE, RIGHT  # noqa: E402

N, D, B, MOE, ODD, TEXT, SORT = "jamba-nobias jamba-dense jamba-bf16 jamba-moe jamba-odd tiny-text tiny-sort".split()
M, MO = "mamba-small", "mamba-odd"
DRAFT = "--draft 1"
TABLE = [
    ("clean", "", D), ("clean", "", M), ("clean", "", MO), ("clean", "", MOE), ("clean", "", ODD), ("clean", "", B), ("clean", "", N, DRAFT),
]
TRIALS, TRIALS_OF = {}, {}


def case(family, bug, model, more="", threshold=None, program="ring.py"):
    name = f"{program[:-3]}:{bug or 'clean'}@{model}" + "".join("+" + w.lstrip("-") for w in more.split())
    half = "tuned" if hashlib.sha256(name.encode()).digest()[0] % 2 else "set aside"
    return {"name": name, "family": family, "program": "../third/" + program, "model": model, "half": half,
            "args": ["--bug", bug] + more.split(), "threshold": threshold, "right": tuple(RIGHT[family]),
            "needs": ("torch", "transformers") if program == "replay.py" else ()}


CASES = [case(*row) for row in TABLE]
assert len({c["name"] for c in CASES}) == len(CASES)
