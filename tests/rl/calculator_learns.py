#!/usr/bin/env python3
"""The example of a tool, as a user runs it: a tiny model that was taught to ask the calculator learns to use it.

Usage: calculator_learns.py PROGRAM SOURCE_DIR

Conversations are written by the model's own template, in training and between the turns. The run has one digest: with
one worker and with three, as a class and as a function, and with a worker that is killed on the way.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
EXAMPLE = SOURCE / "examples/environments/calculator_tool.py"
MORTAL = """
import os, pathlib, signal, sys
sys.path.insert(0, EXAMPLES)
from calculator_tool import Calculator

class Mortal(Calculator):
    def step(self, reply):
        if self.used and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(reply)
"""


def lockstep(kind, **options):
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run([PROGRAM, "train", kind, *[part for word in words for part in ("--set", word)]],
                          capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"train {kind}: exit code {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout + done.stderr


def check(holds, words):
    if not holds:
        sys.exit(words)


def digest(text):
    return re.search(r"digest ([0-9a-f]{16})", text)[1]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        traces = subprocess.run([sys.executable, EXAMPLE, "2000"], capture_output=True, text=True, check=True).stdout
        (folder / "traces.jsonl").write_text(traces)
        lockstep("sft", model=SOURCE / "models/tiny-text", run=folder / "warm", data=folder / "traces.jsonl", steps=120,
                 batch=16, rate=0.003, save_every=0, threads=1)
        (warm,) = (folder / "warm/checkpoints").iterdir()
        common = {"model": warm, "prompts": 8, "samples": 8, "stop": "\n", "max_tokens": 12, "environment_turns": 3,
                  "rate": 0.0003, "save_every": 0, "threads": 1}
        told = lockstep("grpo", run=folder / "long", steps=20, eval_every=20, eval_n=200, eval_temperature=1,
                        reward_workers=2, environment=f"python:{EXAMPLE}:Calculator",
                        environment_record=folder / "turns.jsonl", **common)
        before = float(re.search(r"held-out ([0-9.]+) before", told)[1])
        after = float(re.search(r"held-out reward ([0-9.]+)", told)[1])
        print(f"held-out reward {before} before and {after} after 20 steps")
        check(after > before + 0.05, "nothing was learnt")
        turns = [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
        asked = [x for x in turns if x["turns"][0].get("messages", [{}])[0].get("role") == "tool"]
        print(f"{len(asked)} of {len(turns)} episodes have a turn of the tool")
        check(len(asked) > len(turns) // 2, "the tool was hardly asked")

        mark = folder / "killed"
        mortal = folder / "mortal.py"
        mortal.write_text(f"EXAMPLES = {str(EXAMPLE.parent)!r}\n{MORTAL}\n\nMARK = pathlib.Path({str(mark)!r})\n")
        digests = set()
        for name, workers in ((f"{EXAMPLE}:Calculator", 1), (f"{EXAMPLE}:Calculator", 3), (f"{EXAMPLE}:one_step", 3),
                              (f"{mortal}:Mortal", 3)):
            digests.add(digest(lockstep("grpo", run=folder / f"short-{workers}-{name.rpartition(':')[2]}", steps=2,
                                        reward_workers=workers, environment=f"python:{name}", **common)))
        print("digests:", *digests)
        check(len(digests) == 1, "results depend on the workers")
        check(mark.exists(), "no worker was killed")


if __name__ == "__main__":
    main()
