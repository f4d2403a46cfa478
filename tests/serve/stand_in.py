#!/usr/bin/env python3
"""A server that is none of ours, in the dialects of vLLM, SGLang and llama.cpp, with a fault if one is asked for.

Its model is a table: the last tokens choose a row of logits. Usage: stand_in.py PORT_FILE DIALECT [FAULT] [NOISE]
"""

import functools
import hashlib
import http.server
import json
import math
import os
import random
import socket
import struct
import sys
import threading
import time

VOCAB, ROWS = 64, 997
PORT_FILE, DIALECT = sys.argv[1:3]
FAULT = sys.argv[3] if len(sys.argv) > 3 else "none"
NOISE = float(sys.argv[4]) if len(sys.argv) > 4 else 1e-6
rng = random.Random(5)
TABLE = [[rng.gauss(0.0, 2.0) for _ in range(VOCAB)] for _ in range(ROWS)]
TEMPLATE = [7, 9, 7]
cache, lock, running = {}, threading.Lock(), {}
leak, replica, turn, biased = [0], [0], [0], set()
draws_now, marks, leaked = [0], [0], set()
ring = [0] * 40  # what each slot was left with; slots are taken in turn


def next_state(state, token):
    return (state * 1000003 + token + 1) % 2305843009213693951


@functools.cache  # a run asks for each row again and again
def log_sum(i, temperature):
    most = max(TABLE[i])
    return math.log(sum(math.exp((x - most) / temperature) for x in TABLE[i]))


@functools.cache
def ways_on(i, temperature, top_k):
    """Of a row of logits the tokens that may be drawn, the likeliest first, and their weights."""
    row = TABLE[i]
    order = sorted(range(VOCAB), key=lambda i: -row[i])[: top_k or VOCAB]
    return order, temperature and [math.exp((row[i] - row[order[0]]) / temperature) for i in order]


def value(state, token, temperature, way):
    row = TABLE[state % ROWS]
    most = max(row)
    if FAULT == "flips":  # two paths agree to the bit, but for a rounding now and then
        draw = hashlib.blake2b(b"%d %s" % (state, way), digest_size=2).digest()
        return row[token] - most - log_sum(state % ROWS, 1.0) + (0.02 if draw[0] < 6 else 0.0)
    if FAULT.startswith("two-kernels"):  # decode is another kernel than prefill: first tokens are equal in bits
        draw = hashlib.blake2b(b"%d %d" % (state, token), digest_size=4).digest()
        away = (0.3 if FAULT == "two-kernels-far" else 0.004) * (draw[0] + draw[1] - 255) / 128
        return (row[token] - most - log_sum(state % ROWS, 1.0)) * (1.0 + (away if way == b"later" else 0.0))
    if FAULT == "tiles" and way.endswith(b"tiles"):  # sums of a forward of 64 and more are in float32, of others in f16
        draw = hashlib.blake2b(b"%d %d tiles" % (state, token), digest_size=2).digest()
        return value(state, token, temperature, b"few") + 0.003 * (draw[0] - 127) / 128
    if FAULT == "characters" and way == b"kept":  # keys in f16: now and then one falls on the other side
        draw = hashlib.blake2b(b"%d %d flip" % (state, token), digest_size=2).digest()
        return value(state, token, temperature, b"few") + (3e-4 if draw[0] < 26 else 0.0)
    if FAULT == "ties" and way == b"decode":  # of two experts, now and then
        draw = hashlib.blake2b(b"%d %d tie" % (state, token), digest_size=2).digest()
        return value(state, token, temperature, b"few") + (1.5 if draw[0] < 3 else 0.0)
    if FAULT == "hand-over" and way != b"prompt":  # bf16, and behind the first token something is missing
        draw = hashlib.blake2b(b"%d %d over" % (state, token), digest_size=2).digest()
        return value(state, token, temperature, b"prompt") + (0.03 if way == b"first" else 0.25) * (draw[0] - 127) / 128
    if FAULT == "rows" and way.endswith(b"rows"):  # a forward of many has a kernel that is coarse
        draw = hashlib.blake2b(b"%d %d" % (state, token), digest_size=4).digest()
        return value(state, token, temperature, b"few") + 0.02 * (draw[0] + draw[1] - 255) / 128
    rounding = hashlib.blake2b(b"%d %d %s" % (state, token, way), digest_size=4).digest()
    noise = NOISE * (rounding[0] + rounding[1] + rounding[2] - 383) / 128
    return (row[token] - most) / temperature - log_sum(state % ROWS, temperature) + noise


def draw(state, temperature, top_k, generator):
    order, weights = ways_on(state % ROWS, temperature, top_k)
    return generator.choices(order, weights)[0] if temperature != 0 else order[0]


def read(ids):
    state = 1
    for token in ids:
        state = next_state(state, token)
    return state


def start(ids, is_prompt):
    """The state behind a prompt, through what is wrong with it."""
    if FAULT == "pad-eight":  # filled up on the left, and nothing masks that
        ids = [0] * (-len(ids) % 8) + ids
    state = read(ids)
    if FAULT == "leak" and not is_prompt:  # the slot holds what the request before left
        state, leak[0] = next_state(state, leak[0]), ids[0]
    if FAULT == "leak-short" and not is_prompt:  # a prompt so short is taken for one that is under way
        state, leak[0] = next_state(state, leak[0]) if len(ids) < 5 else state, ids[0]
    if FAULT == "leak-sum" and not is_prompt:  # of all requests before, but for the newest
        with lock:
            state = next_state(state, len(leaked) // 16)
            leaked.add(tuple(ids))
    if FAULT == "leak-ring":
        with lock:
            turn[0] = (turn[0] + 1) % len(ring)
            state, ring[turn[0]] = next_state(state, ring[turn[0]]), ids[0]
    if FAULT == "replicas" and not is_prompt:
        replica[0] += 1
        state = next_state(state, 5) if replica[0] % 3 else state
    return state


class Answer:
    """Tokens and values of one completion."""

    def __init__(self, ids, n_new, temperature=1.0, top_k=0, seed=0, forced=None):
        generator = random.Random("%s %s" % (seed, ids))
        if FAULT == "seeds" and draws_now[0] > 1:  # whatever was asked for
            generator = random.Random()
        state, self.ids, self.values = start(ids, forced is not None), [], []
        if FAULT == "turns" and forced is None:
            with lock:
                turn[0] += 1
                self.turn = turn[0] % 2
        at = temperature if FAULT == "temperature" and temperature > 0 else 1.4 if FAULT == "warm" else 1.0
        for k in range(n_new):
            token = draw(state, temperature, top_k, generator) if forced is None else forced
            many = FAULT == "rows" and (len(ids) if k == 0 else 6 * draws_now[0]) > 6
            if FAULT == "tiles" and (forced is not None or k == 0) and len(ids) >= 64:
                way = b"tiles"
            elif FAULT == "hand-over" and forced is None and k == 0:
                way = b"first"
            elif FAULT == "characters" and forced is None and k > 0:
                way = b"kept"
            else:
                later = k > 0 and FAULT.startswith("two")
                way = b"decode rows" if many else b"prompt" if forced is not None else b"later" if later else b"decode"
            record = value(state, token, at, way)
            if FAULT == "turns" and forced is None:  # every second request is of a server with other weights, by little
                record *= 1.0 + 0.004 * self.turn
            if FAULT == "clamp":
                record = max(record, -3.0)
            if FAULT == "probability":
                record = math.exp(record)
            if FAULT == "likeliest":
                record = max(value(state, other, at, b"decode") for other in range(VOCAB))
            if FAULT == "grid":
                record = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", record))[0] & 0xFFFF0000))[0]
            if FAULT == "zeros" and state % 11 == 0:
                record = 0.0
            if FAULT == "penalty":  # on what stood there before, by little
                row, seen = TABLE[state % ROWS], set(ids + self.ids)
                logits = [x - 0.1 * (i in seen) for i, x in enumerate(row)]
                record += logits[token] - row[token] + math.log(sum(map(math.exp, row)) / sum(map(math.exp, logits)))
            if FAULT == "top-k" and 0 < top_k:
                kept = sorted(TABLE[state % ROWS])[-top_k:]
                record = TABLE[state % ROWS][token] - math.log(sum(math.exp(x) for x in kept))
            self.ids.append(token)
            self.values.append(record * (1.25 if FAULT == "scaled" else 1.0))
            state = next_state(state, token)
        if FAULT == "late-from-four" and len(self.values) > 4:
            self.values = self.values[:4] + self.values[3:-1]
        if FAULT == "sums":
            self.values = [sum(self.values[:k + 1]) for k in range(len(self.values))]
        if FAULT == "first-early" and len(self.values) > 1:
            self.values[0] = self.values[1]
        if FAULT == "shift" and forced is None and n_new > 1:
            self.values = [self.values[0]] + self.values[:-1]


def cache_key(ids):
    return {
        "cross-length": len(ids),
        "cross-head": (tuple(ids[:8]), len(ids)) if len(ids) > 12 else None,
        "cross-tail": (tuple(ids[-8:]), len(ids)) if len(ids) > 12 else None,
        "cross-set": tuple(sorted(ids)) if len(ids) > 12 else None,
    }.get(FAULT)


def complete(ids, n_new, **draws):
    """What is generated, through whatever fault there is."""
    if FAULT in ("mixing", "neighbours"):  # one that runs beside another of its length takes that one's values
        with lock:
            others = [o for o in running.values() if len(o) == len(ids) and (o != ids or FAULT == "neighbours")]
            running[threading.get_ident()] = ids
        time.sleep(0.004)
        with lock:
            del running[threading.get_ident()]
            others += [o for o in running.values() if len(o) == len(ids) and (o != ids or FAULT == "neighbours")]
        if others and n_new > 1:
            answer, other = Answer(ids, n_new, **draws), Answer(others[0], n_new, **draws)
            answer.values = other.values
            if FAULT == "neighbours":  # which is a step ahead, as a copy of the same text is
                answer.values = answer.values[1:] + answer.values[:1]
            return answer
    if FAULT in ("seeds", "rows") and n_new > 1:
        with lock:
            draws_now[0] += 1
        time.sleep(0.004)
        answer = Answer(ids, n_new, **draws)
        time.sleep(0.004 if FAULT == "rows" else 0.0)  # others are still there
        with lock:
            draws_now[0] -= 1
        return answer
    key = cache_key(ids) if n_new > 1 else None
    if key is None:
        return Answer(ids, n_new, **draws)
    with lock:
        known = cache.setdefault((key, n_new), ids)
    return Answer(known, n_new, **draws)


def scores(ids):
    if FAULT == "bos-score":
        return [None] + [value(read([1] + ids[:k]), ids[k], 1.0, b"prompt") for k in range(1, len(ids))]
    state, values = read([0] * (-len(ids) % 8) + ids[:1] if FAULT == "pad-eight" else ids[:1]), [None]
    for token in ids[1:]:
        values.append(value(state, token, 1.0, b"prompt rows" if FAULT == "rows" and len(ids) > 6 else b"prompt"))
        state = next_state(state, token)
    return values


def tokenize(text):
    return [1 + ord(c) % (VOCAB - 2) for c in text]


def hang(ids):
    """Every second context never comes to an end: until the client goes away, as far as it can tell."""
    if FAULT == "hangs" and read(ids) % 2 == 0:
        time.sleep(600)


def vllm(o):
    ids = tokenize(o["prompt"]) if isinstance(o["prompt"], str) else o["prompt"]
    sent = ids
    if len(ids) < 60:  # texts, by which a client asks who it is, are longer
        hang(ids)
    if FAULT.startswith("template") and not (FAULT == "template-bos" and "prompt_logprobs" in o):
        ids = ([1] if FAULT == "template-bos" else TEMPLATE) + ids
    choices, before = [], None
    for sample in range(o.get("n", 1)):
        a = complete(ids, o["max_tokens"], temperature=o["temperature"], top_k=o.get("top_k", 0),
                     seed=(o.get("seed", 0), sample))
        if FAULT == "forks":  # from the second sample on, the records are those of the one before
            a.values, before = before or a.values, a.values
        stops = [k for k, token in enumerate(a.ids) if token in o.get("stop_token_ids", [])][:1]
        if stops:
            del a.ids[stops[0] + 1:], a.values[stops[0] + 1:]
            if FAULT == "stop-null":
                a.values[-1] = None
        if FAULT.startswith("marks") and "prompt_logprobs" not in o:  # what was asked for by one before is still there
            with lock:
                marks[0] = (10**6 if FAULT == "marks-for-good" else 6) if "frequency_penalty" in o else max(marks[0] - 1, 0)
            a.values = [v * 1.5 if marks[0] else v for v in a.values]
        for k in range(len(a.values)):  # one in twelve by its place among all tokens, or the first of each
            lacks = read(ids + a.ids[:k + 1]) % 12 == 0 if FAULT.startswith("missing") else FAULT == "first-missing" and k == 0
            if lacks:
                a.values[k] = {"missing-nan": math.nan, "missing-sentinel": -9999.0}.get(FAULT)
        told = sent if FAULT in ("template-silent", "template-bos") else ids
        choice = {"index": sample, "token_ids": a.ids, "prompt_token_ids": told,
                  "logprobs": {"tokens": ["token_id:%d" % i for i in a.ids], "token_logprobs": a.values}}
        if "prompt_logprobs" in o:
            pairs = list(zip(ids, scores(ids)))[-len(told):]
            choice["prompt_logprobs"] = [None] + [{str(i): {"logprob": v}} for i, v in pairs[1:]]
        choices.append(choice)
    return {"choices": choices, "usage": {"prompt_tokens": len(told)}}


def sglang(o):
    p = o["sampling_params"]
    ids = o["input_ids"] if "input_ids" in o else tokenize(o["text"])
    answers = []
    for sample in range(p.get("n", 1)):
        a = complete(ids, p["max_new_tokens"], temperature=p["temperature"], top_k=p.get("top_k", 0), seed=sample)
        meta = {"prompt_tokens": len(ids), "output_token_logprobs": [[v, i, None] for v, i in zip(a.values, a.ids)]}
        if o.get("logprob_start_len") == 0:
            meta["input_token_logprobs"] = [[v, i, None] for v, i in zip(scores(ids), ids)]
        answers.append({"output_ids": a.ids, "meta_info": meta})
    return answers if "n" in p else answers[0]


def llama_cpp(o):
    ids = tokenize(o["prompt"]) if isinstance(o["prompt"], str) else o["prompt"]
    forced = o["logit_bias"][0][0] if "logit_bias" in o else None
    if FAULT == "bias-stays" and forced is not None:  # biases of all requests before are still there
        biased.add(forced)
        row = TABLE[read(ids) % ROWS]
        forced = max(biased, key=lambda i: row[i])
    a = complete(ids, o["n_predict"], temperature=o["temperature"], top_k=o.get("top_k", 40), seed=o.get("seed", 0),
                 forced=forced)
    items = [{"id": i, "logprob": v, "top_logprobs": []} for v, i in zip(a.values, a.ids)]
    if len(items) > 1:  # the real one has none for a token that ends within a character: here those are 60 and above
        items = [item for item in items if item["id"] < 60]
        # This seed draws such a token second.
        if FAULT == "characters" and o.get("seed", 0) == 0 and o["temperature"] > 2 and len(ids) != 6:
            items = items[:1]
    return {"tokens_evaluated": len(ids), "id_slot": o.get("id_slot", 0), "completion_probabilities": items,
            "tokens": a.ids if o.get("return_tokens") else [], "tokens_predicted": len(a.ids), "stop_type": "limit"}


OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}
PATHS = {"vllm": ("/v1/completions", vllm), "sglang": ("/generate", sglang), "llama.cpp": ("/completion", llama_cpp)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words):
        pass

    def say(self, status, what):
        data = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            meta = {"n_vocab": VOCAB} if DIALECT == "llama.cpp" else None
            self.say(200, {"data": [{"id": "stand-in", "owned_by": OWNERS[DIALECT], "max_model_len": 1200, "meta": meta}]})
        elif self.path == "/props" and DIALECT == "llama.cpp":
            self.say(200, {"total_slots": 4, "default_generation_settings": {"n_ctx": 1200}})
        else:
            self.say(404, {"error": "no such path"})

    def do_POST(self):
        o = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        path, answer = PATHS[DIALECT]
        try:
            if self.path == path:
                self.say(200, answer(o))
            elif self.path == "/tokenize" and DIALECT == "llama.cpp":
                self.say(200, {"tokens": tokenize(o["content"])})
            else:
                self.say(404, {"error": "no such path"})
        except (BrokenPipeError, ConnectionResetError):
            pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass  # clients that leave are part of it

    request_queue_size = 256


server = Server(("127.0.0.1", 0), Handler)
with open(PORT_FILE + ".part", "w") as file:
    file.write("%d" % server.server_port)
os.rename(PORT_FILE + ".part", PORT_FILE)
server.serve_forever()
