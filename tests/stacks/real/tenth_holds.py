#!/usr/bin/env python3
"""Shows without lockstep probe that each fault of the tenth set changes records, and that no sound setting does.

Usage: tenth_holds.py MODELS [NAME...]          MODELS is a folder; models that it lacks are made there

The measure is that of seventh_holds.py. The traffic has groups of samples, shared beginnings and middles, turns,
prompts of a few tokens and of whole blocks that come again, long ones, crowds, and clients that leave. Of sound
settings the values of prompts are held against the model as well.
"""
import os
import random
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import torch

import ninth_holds
import seventh_holds
import tenth_cases

SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tenth.py")


def traffic(url, case, r):
    """(prompt, completion, records, temperature) of each request."""
    habits, answers, lock = tenth_cases.habits_of(case), [], threading.Lock()
    several = 1 if "one" in habits else 4
    asked = types.SimpleNamespace(dialect=case.dialect)

    def text(n):
        return [r.randrange(3, 512) for _ in range(n)]

    def send(ids, n_new=12, n=1, **more):
        made = ninth_holds.complete(url, asked, ids, n_new, len(answers), n=n, **more)
        with lock:
            answers.extend((ids, new, records, more.get("temperature", 1.0)) for new, records in made)
        return made[0][0]

    def at_once(lengths, n_new):
        texts = [(text(n), n_new(n)) for n in lengths]
        with ThreadPoolExecutor(28) as pool:
            list(pool.map(lambda t: send(*t), texts))

    system, middle = text(40), text(32)
    for i in range(3):
        send(system + text(20))
        again = system + text(24)
        for n in (1, 2, 3, 4, 16, 32):
            ids = text(n)
            send(ids)
            send(ids)
        for _ in range(2):
            send(again)
            send(text(20 + i), n=several)
        for _ in range(5):
            send(text(16) + middle + text(9))
        turns = text(27)
        for _ in range(2):
            turns = turns + send(turns) + text(6)
        for n in (70, 100, 130, 180, 270, 290, 310, 330 + i):
            send(text(n), n_new=20)
        for n in (21, 24, 26, 33):
            if case.dialect == "vllm":
                seventh_holds.leave(url, text(30))
            at_once((n, n + 4, n + 9), lambda n: 14)
            for hot in (0.7, 1.3):
                send(text(n), temperature=hot)
        at_once((5, 8, 70, 11, 14, 100, 17, 20), lambda n: 8 + n % 7)
    for _ in range(2):
        at_once(range(50, 74), lambda n: 32 + n * 7 % 20)
    if case.family == tenth_cases.SOUND:
        answers += [(a, b, ninth_holds.score(url, asked, a + b)[len(a) - 1:], 1.0) for a, b, _, _ in answers[::3]]
    return answers


def measure(models, row):
    case = tenth_cases.BY_NAME[row["words"][1]]
    directory, answers = seventh_holds.answers_of(models, row, SERVE, lambda url: traffic(url, case, random.Random(10)))
    return seventh_holds.judge(directory, row, case.type == "f32", answers, case.dialect == "sglang")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(seventh_holds.report(tenth_cases.FOR_TABLE, "tenth-", measure))
