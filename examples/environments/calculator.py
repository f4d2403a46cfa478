"""Sums with a calculator: `calc(12+7)` in a completion is answered with its value, any other line is the answer.

    lockstep train grpo --set model=MODEL --set run=RUN \
        --set environment_command='python3 examples/environments/calculator.py'

Argument: the numbers are below it (10). A right answer earns 1, a wrong one 0, and the use of the calculator 0.1, once.
`--traces N` writes N solved turns instead, as data for `train sft`.
"""

import json
import random
import re
import sys

from protocol import serve

BELOW = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 10
CALL = re.compile(r"calc\(([0-9+*-]{1,40})\)")


def numbers(split, index):
    draw = random.Random(f"{split}/{index}")
    return draw.randrange(1, BELOW), draw.randrange(1, BELOW)


def reset(split, index):
    a, b = numbers(split, index)
    return f"{a}+{b}="


def value_of(text):
    """A sum, difference or product of whole numbers."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9]+(?:\*[0-9]+)*)", text):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def step(item, turns, ended):
    split, index = item["problem"].split("/")[1:]
    said = turns[-1]["completion"]
    call = CALL.search(said)
    used = any(CALL.search(turn["completion"]) for turn in turns)
    if call and not ended:
        return {"observation": ("" if said.endswith("\n") else "\n") + f"{value_of(call[1])}\n"}
    right = re.findall(r"-?[0-9]+", said)[:1] == [str(sum(numbers(split, int(index))))]
    return {"done": True, "reward": float(right) + 0.1 * used}


def write_traces(n):
    for i in range(n):
        a, b = numbers("traces", i // 2)
        turn = {"prompt": f"{a}+{b}=", "completion": f"calc({a}+{b})\n"}
        if i % 2:
            turn = {"prompt": f"{a}+{b}=calc({a}+{b})\n{a + b}\n", "completion": f"{a + b}\n"}
        print(json.dumps(turn))


if __name__ == "__main__":
    if "--traces" in sys.argv:
        write_traces(int(sys.argv[-1]))
    else:
        serve(reset, step)
