#!/usr/bin/env python3
"""A proxy in front of llama.cpp's server, with a fault planted in what passes.

Usage: proxy.py URL FAULT [--no-cache]; its address is the first line. --no-cache keeps the server's own prefix cache out of it.

  none         everything passes
  cross-tail   a request gets the answer of an earlier one whose prompt ends alike
  cross-length the same for prompts of equal length
  temperature  values are those of the temperature of sampling, others than the server's raw ones
  shift        values stand one place late
  template     three tokens stand in front of every prompt, counts tell them
  template-decode  the same in front of what is generated alone, and counts hide it
  after-sampling   values are those of the chain of sampling, by the server's own post_sampling_probs
  likeliest    values are the likeliest token's
  clamp        values end at -5
  zeros        one value in eight, by its token, is 0
  f16          values pass through f16
  neighbours   of requests that run at the same time each has another one's values
  log10        values are logarithms to the base 10
  two-late     values stand two places late
  bf16         values pass through bf16
  nulls        one value in nine, by its token, is null
  every-second of requests that run at the same time each second one has another one's values
  cross-head   a request gets the answer of an earlier one of its length whose first 8 tokens are the same
  first-lost   what is generated follows the prompt without its first token, and counts hide it
  cross-start  a request gets the answer of an earlier one that begins with the same three tokens and has as many blocks of 16
  first-zero   the first value is 0
  three-early  values stand three places early
  last-lost    what is generated follows the prompt without its last token, and counts hide it
  breaks-off   one request in twelve is closed without an answer
  cross-end    a request gets the answer of an earlier one of its length that ends with the same four tokens
  late-from-third  values from the third on stand one place late
  two-in-front what is generated follows the prompt with the first two tokens doubled, and counts hide it
  thousandths  values have three decimals
  sixteenths   values are multiples of a 16th
  last-40      what is generated follows the prompt's last 40 tokens alone, and counts hide it
  history-leaks    what is generated follows the last 6 tokens of the request before and the prompt, and counts hide it
  answers-swapped  of requests that run at the same time each gets another one's answer
  penalty-after    a repetition penalty of 1.15 is everybody's default, and values are those of the chain of sampling
  cross-32         a request gets the answer of an earlier one whose first 32 tokens are the same
  through-text     what is generated follows the prompt that went through text and back, and counts hide it
  drafted-zero     every third value, of a token that was drafted, is 0
  p-in-five        values are logarithms of probabilities of five decimals
  least-of-ten     a value that is none of the ten likeliest is the tenth's
  pairs-exchanged  of each two tokens each has the other's value
  cut-body         one answer in ten ends in its middle
"""

import http.client
import http.server
import json
import math
import struct
import sys
import threading
import urllib.parse

UPSTREAM, FAULT = urllib.parse.urlparse(sys.argv[1]), sys.argv[2]
TEMPLATE = [97, 68, 97]
HIDDEN = ("last-40", "first-lost", "last-lost", "two-in-front", "history-leaks", "through-text")
answers, lock = {}, threading.Lock()
running, latest, turn = [0], {}, [0]


def forward(method, path, data):
    connection = http.client.HTTPConnection(UPSTREAM.hostname, UPSTREAM.port, timeout=120)
    connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    return reply.status, said


def key(o):
    ids = o["prompt"]
    if not isinstance(ids, list) or o["n_predict"] == 1 or len(ids) <= 12 and FAULT == "cross-tail":
        return None
    return {"cross-tail": (tuple(ids[-8:]), len(ids), o["n_predict"]), "cross-length": (len(ids), o["n_predict"]),
            "cross-32": (tuple(ids[:32]), o["n_predict"]) if len(ids) > 32 else None,
            "cross-end": (tuple(ids[-4:]), len(ids), o["n_predict"]) if len(ids) > 8 else None,
            "cross-start": (tuple(ids[:3]), len(ids) // 16, o["n_predict"]) if len(ids) > 3 else None,
            "cross-head": (tuple(ids[:8]), len(ids), o["n_predict"]) if len(ids) > 8 else None}.get(FAULT)


def change(o, items):
    """Faults of single values, and of those of a neighbour."""
    if FAULT in ("after-sampling", "penalty-after"):
        for item in items:
            item["logprob"] = math.log(max(item.pop("prob"), 1e-30))
    for item in items:
        if FAULT == "likeliest":
            item["logprob"] = item["top_logprobs"][0]["logprob"]
        elif FAULT == "clamp":
            item["logprob"] = max(item["logprob"], -5.0)
        elif FAULT == "zeros" and item["id"] % 8 == 3:
            item["logprob"] = 0.0
        elif FAULT == "f16":
            item["logprob"] = struct.unpack("e", struct.pack("e", item["logprob"]))[0]
        elif FAULT == "bf16":
            word = struct.unpack("I", struct.pack("f", item["logprob"]))[0]
            item["logprob"] = struct.unpack("f", struct.pack("I", (word + 0x8000) & 0xFFFF0000))[0]
        elif FAULT == "thousandths":
            item["logprob"] = round(item["logprob"], 3)
        elif FAULT == "sixteenths":
            item["logprob"] = round(16.0 * item["logprob"]) / 16.0
        elif FAULT == "p-in-five":
            item["logprob"] = math.log(max(round(math.exp(item["logprob"]), 5), 1e-5))
        elif FAULT == "least-of-ten":
            item["logprob"] = max(item["logprob"], item["top_logprobs"][9]["logprob"])
        elif FAULT == "log10":
            item["logprob"] /= math.log(10.0)
        elif FAULT == "nulls" and item["id"] % 9 == 4:
            item["logprob"] = None
    if FAULT == "late-from-third" and len(items) > 3:
        values = [item["logprob"] for item in items]
        for item, value in zip(items, values[:2] + values[1:-1]):
            item["logprob"] = value
    if FAULT == "first-zero" and items:
        items[0]["logprob"] = 0.0
    if FAULT == "three-early" and len(items) > 3:
        values = [item["logprob"] for item in items]
        for item, value in zip(items, values[3:] + values[-3:]):
            item["logprob"] = value
    if FAULT == "drafted-zero":
        for item in items[2::3]:
            item["logprob"] = 0.0
    if FAULT == "pairs-exchanged":
        for one, two in zip(items[::2], items[1::2]):
            one["logprob"], two["logprob"] = two["logprob"], one["logprob"]
    if FAULT == "two-late" and len(items) > 2:
        values = [item["logprob"] for item in items]
        for item, value in zip(items, values[:2] + values[:-2]):
            item["logprob"] = value
    if FAULT == "every-second":
        with lock:
            turn[0] += 1
    if FAULT == "neighbours" or (FAULT == "every-second" and turn[0] % 2):
        own = [item["logprob"] for item in items]
        with lock:
            others = latest.get(len(own)) if running[0] > 1 else None
            latest[len(own)] = own
        for item, value in zip(items, others or own):
            item["logprob"] = value


def through_text(ids):
    return json.loads(forward("POST", "/detokenize", json.dumps({"tokens": ids}).encode())[1])["content"]


def complete(path, o):
    forced = "logit_bias" in o
    ids, asked = o["prompt"], len(o["prompt"])
    with_template = FAULT == "template" or FAULT == "template-decode" and not forced
    if with_template and isinstance(ids, list):
        o["prompt"] = TEMPLATE + ids
    if FAULT == "last-40" and not forced and isinstance(ids, list):
        o["prompt"] = ids[-40:]
    if FAULT == "first-lost" and not forced and isinstance(ids, list) and len(ids) > 1:
        o["prompt"] = ids[1:]
    if FAULT == "two-in-front" and not forced and isinstance(ids, list):
        o["prompt"] = ids[:2] + ids
    if FAULT == "last-lost" and not forced and isinstance(ids, list) and len(ids) > 1:
        o["prompt"] = ids[:-1]
    if FAULT == "history-leaks" and not forced and isinstance(ids, list):
        with lock:
            o["prompt"], latest["ids"] = latest.get("ids", []) + ids, ids[-6:]
    if FAULT == "through-text" and not forced and isinstance(ids, list):
        o["prompt"] = through_text(ids) or ids
    if FAULT == "penalty-after" and not forced:
        o.update(repeat_penalty=1.15, repeat_last_n=64, post_sampling_probs=True)
    if FAULT == "least-of-ten" and not forced:
        o["n_probs"] = 10
    if FAULT == "after-sampling" and not forced:
        o["post_sampling_probs"] = True
    warm = FAULT == "temperature" and not forced and o.get("temperature", 0) not in (0, 1)
    if warm:  # the server's own values are raw: those of all tokens make the ones of a temperature
        o["n_probs"] = 512
    if "--no-cache" in sys.argv:
        o["cache_prompt"] = False
    status, said = forward("POST", path, json.dumps(o).encode())
    if status != 200:
        return status, said
    answer = json.loads(said)
    items = answer.get("completion_probabilities", [])
    if warm:
        t = o["temperature"]
        for item in items:
            total = math.log(sum(math.exp(c["logprob"] / t) for c in item["top_logprobs"]))
            item["logprob"] = item["logprob"] / t - total
            item["top_logprobs"] = item["top_logprobs"][:1]
    if FAULT == "shift" and not forced and len(items) > 1:
        values = [item["logprob"] for item in items]
        for item, value in zip(items, values[:1] + values[:-1]):
            item["logprob"] = value
    if not forced:
        change(o, items)
    if isinstance(ids, list) and (FAULT == "template-decode" and with_template or FAULT in HIDDEN and not forced):
        answer["tokens_evaluated"] = asked
    if FAULT == "answers-swapped" and not forced:
        with lock:
            own, answer = answer, latest.get(o["n_predict"], answer) if running[0] > 1 else answer
            latest[o["n_predict"]] = own
    return status, json.dumps(answer).encode()


def answer(path, o):
    k = key(o)
    if k is None:
        return complete(path, o)
    with lock:
        known = answers.get(k)
    if known is None:
        known = complete(path, o)
        with lock:
            answers[k] = known
    return known


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words):
        pass

    def say(self, status, data):
        if FAULT == "cut-body" and self.command == "POST":
            with lock:
                turn[0] += 1
                self.close_connection = turn[0] % 10 == 5
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:len(data) // 2] if self.close_connection and FAULT == "cut-body" else data)

    def do_GET(self):
        self.say(*forward("GET", self.path, None))

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            running[0] += 1
            turn[0] += FAULT == "breaks-off"
            breaks = FAULT == "breaks-off" and turn[0] % 12 == 7
        if breaks:
            with lock:
                running[0] -= 1
            self.close_connection = True
            return
        try:
            self.say(*(answer(self.path, json.loads(data)) if self.path == "/completion" else forward("POST", self.path, data)))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with lock:
                running[0] -= 1


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, address):
        pass  # clients that leave are part of it


server = Server(("127.0.0.1", 0), Handler)
print("listening on http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
