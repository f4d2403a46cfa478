"""The task guess-number as an environment: the same words, the same rewards, other secrets.

    lockstep train grpo --set model=MODEL --set run=RUN --set stop=$'\\n' \
        --set environment_command='python3 examples/environments/guess_number.py 100 7'

Arguments: the largest number (100) and the turns (7).
"""

import random
import sys

from protocol import serve

HIGH = int(sys.argv[1]) if len(sys.argv) > 1 else 100
TURNS = int(sys.argv[2]) if len(sys.argv) > 2 else 7


def secret(split, index):
    return random.Random(f"{split}/{index}").randrange(1, HIGH + 1)


def reset(split, index):
    return f"guess 1..{HIGH}, turns {TURNS}:\n"


def step(item, turns, ended):
    split, index = item["problem"].split("/")[1:]
    hidden = secret(split, int(index))
    lines = turns[-1]["completion"].split("\n")
    guess = lines[0].strip(" ")
    if guess.isascii() and guess.isdigit() and int(guess) == hidden:
        return {"done": True, "reward": 1.0, "observation": "\nright\n"}
    if ended or len(turns) >= TURNS:
        return {"done": True, "reward": 0.0}
    if not (guess.isascii() and guess.isdigit()):
        return {"observation": f"\na number from 1 to {HIGH}\n"}
    return {"observation": "\nhigher\n" if int(guess) < hidden else "\nlower\n"}


if __name__ == "__main__":
    serve(reset, step)
