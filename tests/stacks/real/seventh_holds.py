#!/usr/bin/env python3
"""Shows without lockstep probe that each fault of the seventh set changes records, and that no sound setting does.

Usage: seventh_holds.py MODELS [NAME...]          MODELS is a folder; models that it lacks are made there

Every case serves the same traffic: groups of samples, conversations of some turns, shared beginnings and middles,
crowds, clients that leave, requests with biases, a nucleus and temperatures. The model's own forward in transformers
then computes each recorded token. A request is off if one of its records is farther away than 5 times the median of
what bfloat16 makes of these tokens; where the server is in 16 bits, half of its records, or one by half as much again
as the most that bfloat16 makes. Of a fault one request in 20 must be off. Of a sound setting none may be; in 16 bits
one record may be off by up to 3 times the most.
"""
import json
import os
import random
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import torch
import transformers

import seventh_cases

SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seventh.py")


def post(url, path, what, timeout=120):
    request = urllib.request.Request(url + path, json.dumps(what).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)


def complete(url, dialect, ids, n_new, seed, n=1, temperature=1.0, **more):
    """Pairs of (all tokens, records) of each sample."""
    if dialect == "sglang":
        how = {"max_new_tokens": n_new, "n": n, "sampling_seed": seed, "temperature": temperature, "ignore_eos": True}
        reply = post(url, "/generate", {"input_ids": ids, "sampling_params": how})
        return [(a["output_ids"], [v[0] for v in a["meta_info"]["output_token_logprobs"]]) for a in reply]
    reply = post(url, "/v1/completions", {"prompt": ids, "max_tokens": n_new, "n": n, "seed": seed, "logprobs": 0,
                                          "temperature": temperature, "ignore_eos": True, **more})
    return [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in reply["choices"]]


def leave(url, ids):
    try:
        what = {"prompt": ids, "max_tokens": 200, "temperature": 1.0, "ignore_eos": True}
        post(url, "/v1/completions", what, timeout=0.3)
    except OSError:
        pass


def traffic(url, dialect):
    """(prompt, completion, records, temperature) of each request."""
    r, answers, lock = random.Random(3), [], threading.Lock()

    def text(n):
        return [r.randrange(3, 512) for _ in range(n)]

    def send(ids, n_new=12, **more):
        made = complete(url, dialect, ids, n_new, len(answers), **more)
        with lock:
            answers.extend((ids, new, records, more.get("temperature", 1.0)) for new, records in made)
        return made[0][0]

    system, middle = text(40), text(32)
    for _ in range(4):
        send(system + text(20), n=4)
        again = system + text(24)
        send(again)
        send(again)
        for _ in range(3):
            send(text(16) + middle + text(9))
        turns = text(27)
        for _ in range(3):
            turns = turns + send(turns) + text(6)
        for n in (21, 18, 33):
            leave(url, text(30))
            send(text(n))
        for n in (70, 12):
            send(text(n), temperature=0.7)
            send(text(n), n_new=40, top_p=0.5)
        send(text(13), logit_bias={"7": 4.0, "9": 3.0}, repetition_penalty=1.4)
        send(text(13))
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda n: send(text(n), n_new=8 + n % 7), range(5, 29, 2)))
    with ThreadPoolExecutor(28) as pool:
        list(pool.map(lambda n: send(text(60), n_new=40), range(28)))
    return answers


@torch.no_grad()
def own(directory, dtype, answers):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    values = []
    for ids, new, _, temperature in answers:
        logits = model(torch.tensor([ids + new])).logits[0, len(ids) - 1:-1].float()
        drawn = torch.tensor(new)[:, None]
        values.append([torch.log_softmax(logits / t, -1).gather(1, drawn)[:, 0] for t in (1, temperature)])
    return values


def answers_of(models, case, program, ask):
    """The model's folder, which is made where it is not there; what `ask` has of the address of a set's server."""
    directory, kind = os.path.join(models, case["model"]), case["model"].partition("-")[2]
    if not os.path.exists(directory):
        subprocess.run([sys.executable, program, "--make", directory, kind], check=True, stderr=subprocess.DEVNULL)
    server = subprocess.Popen([sys.executable, program, directory] + case["words"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    try:
        return directory, ask(server.stdout.readline().strip())
    finally:
        server.kill()
        server.wait()


def measure(models, case):
    """How many requests are off, of how many; the limit; the median of what is off."""
    sglang = case["name"] == "seventh-sglang-raw"
    directory, answers = answers_of(models, case, SERVE, lambda url: traffic(url, "sglang" if sglang else "vllm"))
    return judge(directory, case, "float32" in case["words"], answers, sglang)


def judge(directory, case, is_float, answers, sglang=False):
    """How many requests are off, of how many; 5 times the rounding; the median of what is off; the most."""
    f32, bf16 = own(directory, torch.float32, answers), own(directory, torch.bfloat16, answers)
    rounding = torch.cat([(a[0] - b[0]).abs() for a, b in zip(f32, bf16)])
    of_half = 5 * float(rounding.median())
    most = (3 if case["fault"] == "none" else 1.5) * float(rounding.max())
    limit = of_half if is_float else max(of_half, most)
    apart = [(torch.tensor(records) - of[sglang]).abs().nan_to_num(99) for (_, _, records, _), of in zip(answers, f32)]
    off = [d for d in apart if (d > limit).any() or d.median() > of_half]
    far = torch.cat([d[d > of_half] for d in off] or [torch.zeros(1)])
    return len(off), len(apart), of_half, float(far.median()), float(torch.cat(apart).max())


def report(cases, prefix, measured):
    failed = 0
    for case in cases:
        name = case["name"].removeprefix(prefix)
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        off, n, limit, median, most = measured(sys.argv[1], case)
        holds = off == 0 if case["fault"] == "none" else off * 20 >= n
        failed += not holds
        print("%-7s %-26s %3d of %3d requests off, 5 times bf16 %.3g, their median %.3g, largest %.3g" % (
            "holds" if holds else "FAILED", name, off, n, limit, median, most), flush=True)
    return failed


def main():
    torch.set_num_threads(1)
    return report(seventh_cases.CASES, "seventh-", measure)


if __name__ == "__main__":
    sys.exit(main())
