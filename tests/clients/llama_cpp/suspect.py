#!/usr/bin/env python3
"""llama.cpp's server as a suspect of `lockstep sweep` (the protocol of docs/reference/diagnosis.md): a fresh server a trial.

    lockstep sweep --model MODEL --suspect tests/clients/llama_cpp/suspect.py --resident --suspect-arg=--gguf \\
        --suspect-arg=MODEL.gguf [--suspect-arg=--python --suspect-arg=PATH]
        [--suspect-arg=--cache-type --suspect-arg=f32] [--suspect-arg=--flash-attention --suspect-arg=off]

PATH is a Python that has xllamacpp. Obeyed are the levers batch, slots, samples and prefix; of --slots at most 80.
"""

import concurrent.futures
import http.client
import json
import os
import subprocess
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))


def parse(words):
    options, words = {}, iter(words)
    for word in words:
        name = word.removeprefix("--")
        options[name] = True if name == "ignore-eos" else next(words)
    return options


class Server:
    def __init__(self, o, slots, length):
        command = [o.get("python", sys.executable), os.path.join(HERE, "serve.py"), o["gguf"], "--slots", str(slots),
                   "--length", str(length), "--threads", "1", "--cache-type", o.get("cache-type", "f16"),
                   "--flash-attention", o.get("flash-attention", "auto")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.url = urllib.parse.urlparse(self.process.stdout.readline().split()[-1])

    def complete(self, body):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=60)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        said = json.loads(reply.read())
        connection.close()
        if reply.status != 200:
            raise ValueError("%d: %s" % (reply.status, said))
        return said

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def record(name, said, levers):
    """The completion up to the first token without a value: one that ends within a character has none."""
    ids, values = [], []
    for token, item in zip(said["tokens"], said.get("completion_probabilities", [])):
        if token != item["id"]:
            break
        ids.append(token)
        values.append(item["logprob"])
    meta = {"levers": levers, "slot": said["id_slot"], "cache_hit": said["timings"]["cache_n"]}
    return {"id": name, "completion_ids": ids, "logprobs": values, "meta": meta}


def generate(words):
    o = parse(words)
    with open(o["prompts"]) as file:
        prompts = [json.loads(line) for line in file]
    if o["logprobs"] != "raw":
        raise ValueError("this server records the model's own log-probabilities")
    if int(o["slots"]) > 80:
        raise ValueError("80 slots at most")
    batch, samples, new, cache = int(o["batch"]), int(o["samples"]), int(o["max-tokens"]), o["prefix"] != "off"
    slots = int(o["slots"]) or batch
    levers = {"batch": batch, "samples": samples, "prefix": o["prefix"], "slots": int(o["slots"])}
    longest = max(len(p["prompt_ids"]) for p in prompts)
    server = Server(o, max(slots, batch), longest + new + 8)

    def ask(job):
        i, sample = job
        body = {"prompt": prompts[i]["prompt_ids"], "n_predict": new, "temperature": float(o["temperature"]), "top_k": 0,
                "top_p": 1.0, "min_p": 0.0, "n_probs": 1, "return_tokens": True, "cache_prompt": cache,
                "seed": int(o["seed"]) + 1000 * sample + i, "ignore_eos": "ignore-eos" in o}
        return record("%s/%d" % (prompts[i]["id"], sample), server.complete(body), levers)

    try:
        with concurrent.futures.ThreadPoolExecutor(batch) as pool:
            records = list(pool.map(ask, [(i, s) for i in range(len(prompts)) for s in range(samples)]))
    finally:
        server.stop()
    with open(o["out"] + ".part", "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in records)
    os.rename(o["out"] + ".part", o["out"])


def serve(more):
    print(json.dumps({"lockstep": 1}), flush=True)
    for line in sys.stdin:
        try:
            generate(json.loads(line)["argv"][1:] + more)
            answer = {"ok": True}
        except Exception as problem:
            answer = {"ok": False, "error": "%s: %s" % (type(problem).__name__, problem)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[2:]) if sys.argv[1] == "serve" else generate(sys.argv[2:])
