#!/usr/bin/env python3
"""lockstep serve and llama.cpp's server beside each other: the same checkpoint, requests and streaming client, in turns.

Usage: serve_beside.py LOCKSTEP MODEL GGUF [--python PATH] [--requests N] [--tokens N] [--turns N] [--json FILE]

PATH is a Python that has xllamacpp (llama.cpp's server in a wheel; tests/clients/llama_cpp/serve.py starts it); without it
only lockstep serve is measured. GGUF is made by tests/clients/llama_cpp/convert.py. All else is Python's standard library.

At each concurrency both servers get the same requests of token ids, drawn at temperature 1 with a seed each, as streams that
tell each token's log-probability; an end-of-sequence token ends none. Printed are new tokens a second of all streams, the
median and the worst time to a stream's first token, both of the best turn, and of how many tokens the log-probability is the
same float32, and of how many the token, as at concurrency 1. Before it counts, every server has served one round.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
CONCURRENCY = (1, 8, 32)


class Lockstep:
    name = "lockstep serve"

    def __init__(self, o):
        command = [o.lockstep, "serve", "--model", o.model, "--port", "0", "--batch", str(max(CONCURRENCY)),
                   "--max-length", str(o.prompt + o.tokens), "--threads", str(o.threads)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def body(self, ids, n, seed):
        return "/v1/completions", {"prompt": ids, "max_tokens": n, "seed": seed, "temperature": 1.0, "logprobs": 0,
                                   "ignore_eos": True, "stream": True, "return_token_ids": True, "cache_salt": str(seed)}

    def read(self, event):
        for choice in event.get("choices", []):
            yield from zip(choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("token_logprobs") or [])

    def stop(self):
        self.process.terminate()
        self.process.wait()


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, o):
        script = os.path.join(HERE, "../tests/clients/llama_cpp/serve.py")
        command = [o.python, script, o.gguf, "--slots", str(max(CONCURRENCY)), "--length", str(o.prompt + o.tokens + 8),
                   "--threads", str(o.threads), "--cache-type", o.cache_type]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def body(self, ids, n, seed):
        return "/completion", {"prompt": ids, "n_predict": n, "seed": seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
                               "min_p": 0.0, "n_probs": 1, "ignore_eos": True, "stream": True, "cache_prompt": False}

    def read(self, event):
        for item in event.get("completion_probabilities") or []:
            yield item["id"], item["logprob"]

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def stream(server, path, body):
    """Tokens with their values, and seconds to the first and to the last."""
    parts = urllib.parse.urlparse(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=300)
    start = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit("%s: %d: %s" % (server.name, reply.status, reply.read()[:300]))
    first, told = None, []
    for line in reply:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        told += server.read(event)
        if told and first is None:
            first = time.monotonic() - start
    connection.close()
    return told, first


def measure(server, prompts, o, concurrency):
    """One round over the prompts; begun alike for both servers."""
    bodies = [server.body(ids, o.tokens, 1000 + i) for i, ids in enumerate(prompts)]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        told = list(pool.map(lambda b: stream(server, *b), bodies))
    seconds = time.monotonic() - start
    firsts = [first for _, first in told if first is not None]
    return {"tokens_per_second": len(prompts) * o.tokens / seconds, "first_median": statistics.median(firsts),
            "first_worst": max(firsts), "told": [t for t, _ in told]}


def bits(value):
    return struct.pack("<f", value)


def compare(base, other):
    """Of all tokens of `base`: how many are the same token in `other`, and how many have the same value as well."""
    n = same = equal = 0
    for a, b in zip(base, other):
        n += len(a)
        for (x, u), (y, v) in zip(a, b):
            if x != y:
                break  # what follows has another context
            same += 1
            equal += bits(u) == bits(v)
    return n, same, equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("lockstep", "model", "gguf"):
        parser.add_argument(name)
    parser.add_argument("--python", default="", help="a Python with xllamacpp; absent: lockstep serve alone")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a request")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cache-type", default="f16", help="of llama.cpp: attention keys and values")
    parser.add_argument("--json", default="")
    o = parser.parse_args()
    draw = random.Random(0)
    with open(os.path.join(o.model, "config.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    prompts = [[draw.randrange(3, vocabulary) for _ in range(o.prompt)] for _ in range(o.requests)]
    servers = [kind(o) for kind in ([Lockstep, LlamaCpp] if o.python else [Lockstep])]
    rows = {}
    try:
        for server in servers:
            measure(server, prompts, o, max(CONCURRENCY))
        for concurrency in CONCURRENCY:
            for _ in range(o.turns):
                for server in servers:
                    rows.setdefault((server.name, concurrency), []).append(measure(server, prompts, o, concurrency))
    finally:
        for server in servers:
            server.stop()
    print("%d requests, %d + %d tokens, best of %d turns, %d processors, load %.1f" %
          (o.requests, o.prompt, o.tokens, o.turns, os.cpu_count(), os.getloadavg()[0]))
    print("server            at once   tokens/s   first token, median   worst   same tokens   same values   (as alone)")
    results = []
    for (name, concurrency), turns in rows.items():
        best = max(turns, key=lambda t: t["tokens_per_second"])
        n = same = equal = 0
        for t in turns:
            counted = compare(rows[name, 1][0]["told"], t["told"])
            n, same, equal = n + counted[0], same + counted[1], equal + counted[2]
        results.append({"server": name, "concurrency": concurrency, "n": n, "same_tokens": same, "same_values": equal,
                        **{k: best[k] for k in ("tokens_per_second", "first_median", "first_worst")}})
        print("%-16s %8d %10.0f %18.1f ms %6.0f ms %8d/%d %8d/%d" %
              (name, concurrency, best["tokens_per_second"], 1e3 * best["first_median"], 1e3 * best["first_worst"], same,
               n, equal, n))
    if o.json:
        with open(o.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
