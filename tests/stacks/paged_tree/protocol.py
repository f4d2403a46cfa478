"""What the stacks of this folder share: options of a trial, records, the pipe (docs/reference/diagnosis.md has the protocol)."""

import json
import os
import sys

FLAGS = ("ignore-eos",)
# What every stack is asked, and where it goes.
ASKED = {
    "model": "",
    "prompts": "",
    "out": "",
    "max-tokens": 16,
    "temperature": 1.0,
    "seed": 0,
    "logprobs": "raw",
    "samples": 1,
    "batch": 16,
    "ignore-eos": False,
    "bug": "",
}


def options(words, defaults):
    """A dictionary of words by option; the last one of a name counts, and the type is that of its default."""
    given, words = dict(defaults), iter(words)
    for word in words:
        name = word[2:]
        value = True if name in FLAGS else next(words)
        if name == "chunk":
            value = 0 if value == "whole" else int(value)
        given[name] = type(defaults[name])(value) if name in defaults else value
    return given


def requests(o):
    """One dictionary for each completion that is asked for: id, prompt, index of the prompt, number of the sample."""
    found = []
    for index, line in enumerate(line for line in open(o["prompts"]) if line.strip()):
        prompt = json.loads(line)
        for sample in range(o["samples"]):
            found.append(
                {"id": f"{prompt['id']}/{sample}", "given": prompt["prompt_ids"], "index": index, "sample": sample}
            )
    return found


def write(path, records):
    with open(path + ".part", "w") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    os.rename(path + ".part", path)


def run(generate):
    """generate(words): one trial. `serve` answers trials on a pipe until it closes."""
    if sys.argv[1] != "serve":
        return generate(sys.argv[2:])
    print(json.dumps({"lockstep": 1}), flush=True)
    for line in sys.stdin:
        try:
            generate(json.loads(line)["argv"][1:] + sys.argv[2:])
            answer = {"ok": True}
        except Exception as problem:  # whatever it is, the next trial may be answered
            answer = {"ok": False, "error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)
