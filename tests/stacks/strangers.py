#!/usr/bin/env python3
"""A rollout engine and a trainer for a model that lockstep does not know: the logits of the next token are a hash of the
tokens before it. With `--bug batch` requests of one batch see each other; with `--bug shift` records stand one place late,
with `pad` prompts are filled up to a multiple of 8, with `mean` and `probability` they are these, and with `dies` it ends when it gets many requests.
It answers to `generate`, to `score` and, on a pipe, to `serve` (docs/reference/diagnosis.md has the protocol). No packages needed.
"""
import json
import math
import os
import random
import sys

VOCAB = 40


def logits(tokens, salt=0):
    state = 17 + salt
    for token in tokens[-64:]:
        state = (state * 6364136223846793005 + token * 2 + 1) % 2**64
    row = []
    for _ in range(VOCAB):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        row.append((state >> 40) / 2**22 - 2)
    return row


def log_softmax(row, temperature=1.0):
    top = max(row)
    total = math.log(sum(math.exp((x - top) / temperature) for x in row))
    return [(x - top) / temperature - total for x in row]


def words(argv):
    given, rest = {}, iter(argv)
    for word in rest:
        given[word[2:]] = True if word == "--ignore-eos" else next(rest)
    return given


def write(path, records):
    with open(path + ".part", "w") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    os.rename(path + ".part", path)


def generate(o):
    prompts = [json.loads(line) for line in open(o["prompts"])]
    if o.get("bug") == "dies" and len(prompts) > 20:
        os._exit(7)
    batch, temperature, records = int(o["batch"]), float(o["temperature"]), []
    assert 0 < float(o.get("memory-fraction", 1)) <= 1  # the first version of the protocol has numbers for shares
    rng = random.Random(5)
    for i, prompt in enumerate(prompts):
        for sample in range(int(o["samples"])):
            tokens, ids, values = list(prompt["prompt_ids"]), [], []
            if o.get("bug") == "pad":  # filled up on the left, and nothing masks that
                tokens = [0] * (-len(tokens) % 8) + tokens
            mates = prompts[i // batch * batch : (i // batch + 1) * batch]
            salt = sum(map(sum, (m["prompt_ids"] for m in mates))) if o.get("bug") == "batch" and len(mates) > 1 else 0
            for _ in range(int(o["max-tokens"])):
                row = log_softmax(logits(tokens, salt))
                row = [x + rng.gauss(0, 1e-6) for x in row]
                token = rng.choices(range(VOCAB), [math.exp(x / temperature) for x in row])[0]
                values.append((row if o["logprobs"] == "raw" else log_softmax(row, temperature))[token])
                ids.append(token)
                tokens.append(token)
            if o.get("bug") == "shift":
                values = values[:1] + values[:-1]
            if o.get("bug") == "mean":
                values = [sum(values) / len(values)] * len(values)
            if o.get("bug") == "probability":
                values = [math.exp(x) for x in values]
            record = {"id": f"{prompt['id']}/{sample}", "completion_ids": ids, "logprobs": values}
            record["meta"] = {"levers": {"batch": batch, "samples": int(o["samples"])}}
            records.append(record)
    write(o["out"], records)


def score(o):
    temperature, records = float(o["temperature"]) if o["logprobs"] == "processed" else 1.0, []
    for request in map(json.loads, open(o["tokens"])):
        ids = request["token_ids"]
        values = [log_softmax(logits(ids[:i]), temperature)[ids[i]] for i in range(1, len(ids))]
        records.append({"id": request["id"], "logprobs": values})
    write(o["out"], records)


def answer(argv):
    {"generate": generate, "score": score}[argv[0]](words(argv[1:]))


def serve(more):
    print(json.dumps({"lockstep": 1}), flush=True)
    for line in sys.stdin:
        try:
            answer(json.loads(line)["argv"] + more)
            print(json.dumps({"ok": True}), flush=True)
        except Exception as problem:
            print(json.dumps({"ok": False, "error": str(problem)}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[2:]) if sys.argv[1] == "serve" else answer(sys.argv[1:])
