#!/usr/bin/env python3
"""Shows without lockstep probe that each fault of the eighth set changes records, and that no sound setting does.

Usage: eighth_holds.py MODELS [NAME...]          MODELS is a folder; models that it lacks are made there

The measure is that of seventh_holds.py. The traffic has long texts as well, requests one behind the other and some that
go on behind a completion. Where a server refuses n > 1, the traffic has none.
"""
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import eighth_cases
import seventh_holds

SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "eighth.py")


def traffic(url, habits, r):
    """(prompt, completion, records, temperature) of each request."""
    answers, lock = [], threading.Lock()

    def text(n):
        return [r.randrange(3, 512) for _ in range(n)]

    def send(ids, n_new=12, n=1, **more):
        made = seventh_holds.complete(url, "vllm", ids, n_new, len(answers), n=1 if "one" in habits else n, **more)
        with lock:
            answers.extend((ids, new, records, more.get("temperature", 1.0)) for new, records in made)
        return made[0][0]

    def at_once(lengths, n_new):
        texts = [(text(n), n_new(n)) for n in lengths]
        with ThreadPoolExecutor(28) as pool:
            list(pool.map(lambda t: send(*t), texts))

    system, middle = text(40), text(32)
    for _ in range(3):
        again = system + text(24)
        send(system + text(20), n=4)
        send(again)
        send(again)
        for n in (16, 32, 48):
            send(text(n) + middle + text(9))
        turns = text(27)
        for _ in range(3):
            turns = turns + send(turns) + text(6)
        for n in (150, 210, 260, 300):
            send(text(n), n_new=16)
        for n in (20, 33):
            send(text(n), temperature=0.7)
        at_once(range(5, 29, 3), lambda n: 8 + n % 7)
        at_once((21, 52, 34), lambda n: 20)
    at_once([60] * 24, lambda n: 30)
    return answers


def measure(models, case):
    named = eighth_cases.BY_NAME[case["words"][1]]
    directory, answers = seventh_holds.answers_of(
        models, case, SERVE, lambda url: traffic(url, named.habits.split(), random.Random(8)))
    return seventh_holds.judge(directory, case, named.type == "float32", answers)


def main():
    torch.set_num_threads(1)
    return seventh_holds.report(eighth_cases.FOR_TABLE, "eighth-", measure)


if __name__ == "__main__":
    sys.exit(main())
