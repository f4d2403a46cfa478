#!/usr/bin/env python3
"""Shows without lockstep probe that each fault of the eleventh set changes records, and that no sound setting does.

Usage: eleventh_holds.py MODELS [NAME...]          MODELS is a folder; models that it lacks are made there

The measure is that of seventh_holds.py, and so is what a request is. The traffic is that of eleventh_cases.py. Of
sound settings the values of prompts are held against the model as well.
"""
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import eleventh
import ninth
import ninth_holds
import seventh_holds
from eleventh_cases import BY_NAME, FOR_TABLE, SOUND

SERVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "eleventh.py")
PROXY = os.path.join(ninth.LLAMA_CPP, "proxy.py")


def traffic(url, case, r):
    """(prompt, completion, records, temperature) of each request."""
    answers, lock = [], threading.Lock()
    several = 4 if case.many and case.dialect != "llama.cpp" else 1
    in_front = eleventh.SYSTEM if case.name == "system-prefix-stale" else []

    def text(n):
        return [r.randrange(3, 512) for _ in range(n)]

    def send(ids, n_new=12, n=1, **more):
        made = ninth_holds.complete(url, case, ids, n_new, len(answers), n=n, **more)
        with lock:
            answers.extend((in_front + ids, new, records, 1.0) for new, records in made if new)
        return made[0][0]

    def at_once(lengths, n_new):
        texts = [(text(n), n_new(n)) for n in lengths]
        with ThreadPoolExecutor(28) as pool:
            list(pool.map(lambda t: send(*t), texts))

    system, middle = text(40), text(24)
    for i in range(4):
        send(system + text(20), n=several)
        again = system + text(24 + i)
        send(again)
        send(again)
        turns = text(27)
        for _ in range(2):
            turns = turns + send(turns) + text(6)
        whole = text(20) + middle + text(30)
        send(whole)
        for at in (36, 44):  # a history that lacks a piece
            send(whole[:20] + whole[at:])
        for n in (4, 9, 15, 33, 50, 64, 70, 100, 130, 200):
            if case.dialect == "vllm" and n in (9, 33, 70):
                seventh_holds.leave(url, text(30))
            send(text(n), n_new=20)
            if case.dialect == "vllm" and n in (15, 50, 64, 100):
                ninth_holds.complete(url, case, text(20), 12, 1, repetition_penalty=1.4)
        at_once((21, 25, 30), lambda n: 14)
        at_once((50, 54, 60, 66, 52), lambda n: 12 + n % 5)
        at_once((5, 8, 70, 11, 14, 100, 17, 20), lambda n: 8 + n % 7)
    if case.name == "preempt-prompt":
        at_once(range(50, 74), lambda n: 32 + n * 7 % 20)
    if case in SOUND and case.dialect != "llama.cpp":
        answers += [(a, b, ninth_holds.score(url, case, a + b)[len(a) - 1:], 1.0) for a, b, _, _ in answers[::3]]
    return answers


def behind_proxy(url, case, fault):
    proxy = subprocess.Popen([sys.executable, PROXY, url, fault], stdout=subprocess.PIPE, text=True)
    try:
        return traffic(proxy.stdout.readline().split()[-1], case, random.Random(11))
    finally:
        proxy.kill()


def measure(models, row):
    case = BY_NAME[row["words"][1]]

    def ask(url):
        return behind_proxy(url, case, *row["proxy"]) if row["proxy"] else traffic(url, case, random.Random(11))

    directory, answers = seventh_holds.answers_of(models, row, SERVE, ask)
    is_float = case.dtype == "f32" and case.name != "sound-8-bit-keys"  # which rounds as 16 bits do
    return seventh_holds.judge(directory, row, is_float, answers, case.dialect == "sglang")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(seventh_holds.report(FOR_TABLE, "eleventh-", measure))
