"""Sums with a calculator: `calc(12+7)` in a completion is answered with its value, any other line is the answer.

    lockstep train grpo --set model=MODEL --set run=RUN \
        --set environment_command='python3 examples/environments/calculator.py'

A right answer earns 1, a wrong one 0, and each use of the calculator that it could read 0.1, once.
"""

import random
import re

from protocol import serve

CALL = re.compile(r"calc\(([0-9+*-]{1,40})\)")


def numbers(split, index):
    draw = random.Random(f"{split}/{index}")
    return draw.randrange(1, 10), draw.randrange(1, 10)


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
        return {"observation": f"\n{value_of(call[1])}\n"}
    right = re.findall(r"-?[0-9]+", said)[:1] == [str(sum(numbers(split, int(index))))]
    return {"done": True, "reward": float(right) + 0.1 * used}


if __name__ == "__main__":
    serve(reset, step)
