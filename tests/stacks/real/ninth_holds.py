#!/usr/bin/env python3
"""Shows without lockstep probe that each fault of the ninth set changes values, and that no sound setting does.

Usage: ninth_holds.py MODELS [NAME...]          MODELS is a folder; models that it lacks are made there

The measure is that of seventh_holds.py. The traffic has turns and their branches, shared beginnings, groups of samples,
clients that leave, lone requests, crowds of unlike lengths and long requests together. Of sound settings, and of
replay-shift, what the server says of the same tokens as a prompt is held against the model as well.
"""
import itertools
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import seventh_holds
from ninth_cases import BY_NAME, FOR_TABLE
from seventh_holds import post

SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ninth.py")


def complete(url, case, ids, n_new, seed, n=1, temperature=1.0, **more):
    if case.dialect != "llama.cpp":
        return seventh_holds.complete(url, case.dialect, ids, n_new, seed, n=n, temperature=temperature, **more)
    how = {"n_predict": n_new, "n_probs": 1, "seed": seed, "ignore_eos": True, "temperature": temperature, "top_k": 0,
           "top_p": 1.0, "min_p": 0.0, "return_tokens": True}
    reply = post(url, "/completion", {"prompt": ids, **how})
    items = list(itertools.takewhile(lambda pair: pair[0]["id"] == pair[1],  # it leaves out halves of a letter
                                     zip(reply["completion_probabilities"], reply["tokens"])))
    return [([token for _, token in items], [item["logprob"] for item, _ in items])]


def score(url, case, ids):
    """The server's values of a prompt's tokens from the second on."""
    if case.dialect == "sglang":
        reply = post(url, "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 1},
                                        "logprob_start_len": 0, "return_logprob": True})
        return [v[0] for v in reply["meta_info"]["input_token_logprobs"][1:]]
    reply = post(url, "/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})
    return [next(iter(v.values()))["logprob"] for v in reply["choices"][0]["prompt_logprobs"][1:]]


def traffic(url, case, r):
    """(prompt, completion, records, temperature) of each request."""
    answers, lock, n_samples = [], threading.Lock(), 1 if "one" in case.habits or case.dialect == "llama.cpp" else 3

    def text(n):
        return [r.randrange(3, 512) for _ in range(n)]

    def send(ids, n_new=12, n=1, **more):
        made = complete(url, case, ids, n_new, len(answers), n=n, **more)
        with lock:
            answers.extend((ids, new, records, more.get("temperature", 1.0)) for new, records in made if new)
        return made[0][0]

    def at_once(lengths, n_new):
        texts = [(text(n), n_new(n)) for n in lengths]
        with ThreadPoolExecutor(28) as pool:
            list(pool.map(lambda t: send(*t), texts))

    system, pages, middle = text(40), text(48), text(32)
    for _ in range(3):
        send(system)
        send(system + text(20), n=n_samples)
        for _ in range(2):
            send(system + text(24))
            send(text(16) + middle + text(9))
        turns = text(27)
        for _ in range(2):
            send(turns + text(24))
            turns = turns + send(turns) + text(6)
        send(pages + turns)
        for n in (8, 12, 16, 24, 32, 40):  # histories whose beginning was dropped, alone and behind instructions
            send(turns[n:] + text(8))
            send(pages + turns[n:] + text(4))
        for n in (100, 104, 108, 112, 116, 120, 150, 230, 270, 290, 310, 330, 370, 420):
            send(text(n), n_new=30)
        for n in (21, 25, 26, 29, 33, 37):
            if case.dialect == "vllm":
                what = {"prompt": text(30), "max_tokens": 400, "ignore_eos": True, "repetition_penalty": 1.5,
                        "logit_bias": {"7": 5.0, "9": 4.0, "80": 5.0}}
                try:
                    post(url, "/v1/completions", what, timeout=0.3)
                except OSError:
                    pass
            at_once((n, n + 4, n + 9), lambda n: 14)
            send(text(n), temperature=0.7)
        at_once(range(5, 29, 3), lambda n: 8 + n % 7)
    for _ in range(3):
        at_once(range(50, 74), lambda n: 32 + n * 7 % 20)
    if case.name == "replay-shift":
        answers = [(a, b, score(url, case, a + b)[len(a) - 1:], 1.0) for a, b, _, _ in answers]
    elif not case.families and case.dialect != "llama.cpp":
        answers += [(a, b, score(url, case, a + b)[len(a) - 1:], 1.0) for a, b, _, _ in answers]
    return answers


def measure(models, row):
    case = BY_NAME[row["words"][1]]
    directory, answers = seventh_holds.answers_of(models, row, SERVE, lambda url: traffic(url, case, random.Random(9)))
    return seventh_holds.judge(directory, row, case.type == "f32", answers, case.dialect == "sglang")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(seventh_holds.report(FOR_TABLE, "ninth-", measure))
