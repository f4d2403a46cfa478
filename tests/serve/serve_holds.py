"""The server from outside: bits of generate, streams, dialects, weights that change, hostile clients, and nothing left
behind. Usage: serve_holds.py PROGRAM SOURCE_DIR [PART..], or --seconds N: hostile clients for so long."""

import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

from serving import Server, generate, other_weights, score_spans, side_by_side, told_choices

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
SLOW = os.environ.get("LS_SANITIZED") == "1"  # a sanitizer takes its time: shorter completions do
LONG, LONGER = (300, 400) if SLOW else (900, 2000)
TEXTS = ["The river runs", "Once upon a time", "12+7=", "int max(int a, int b) {"]
SAMPLED = {"seed": 11, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
AS_OPTIONS = [word for key, value in SAMPLED.items() for word in ("--" + key.replace("_", "-"), str(value))]


def same(a, b, what=""):
    if a != b:
        raise AssertionError("%s\n%r\n%r" % (what, a, b))


def as_float(bits):
    return struct.unpack(">f", bytes.fromhex(bits))[0]


def check_choice(choice, record, text=True):
    same(choice["token_ids"], record["completion_ids"], "tokens")
    same(choice["lockstep"]["logprob_bits"], record["logprob_bits"], "bits")
    same(choice["logprobs"]["token_logprobs"], record["logprobs"], "log-probabilities")
    same(choice["finish_reason"], record["finish"])
    if text:
        same(choice["text"], record["text"])


def completions_are_those_of_generate(s):
    body = dict(SAMPLED, prompt=TEXTS, n=3, max_tokens=24, logprobs=0, return_token_ids=True, lockstep=True)
    records = generate(PROGRAM, TINY, [{"prompt": t} for t in TEXTS], "--samples", "3", "--max-tokens", "24", *AS_OPTIONS)
    ids = [r["prompt_ids"] for r in records[::3]]
    replies = side_by_side(lambda: s.post("/v1/completions", body), lambda: s.post("/v1/completions", dict(body, prompt=ids)),
                           lambda: list(s.stream("/v1/completions", body)))
    for reply in replies[:2]:
        same(len(reply["choices"]), 12)
        for choice, record in zip(reply["choices"], records):
            check_choice(choice, record)
            same(choice["prompt_token_ids"], record["prompt_ids"])
        same(reply["usage"]["completion_tokens"], sum(len(r["completion_ids"]) for r in records))
    told = told_choices(replies[2])
    for i, record in enumerate(records):
        t = told[i]
        same((t["text"], t["ids"], t["logprobs"], t["bits"], t["finish"]),
             (record["text"], record["completion_ids"], record["logprobs"], record["logprob_bits"], record["finish"]))
    # SGLang's and vLLM's token endpoints say the same.
    params = dict({k: v for k, v in SAMPLED.items() if k != "seed"}, n=3, max_new_tokens=24, sampling_seed=11)
    for choice, record in zip(s.post("/generate", {"input_ids": ids, "sampling_params": params, "return_logprob": True}),
                              records):
        same(choice["output_ids"], record["completion_ids"])
        same(choice["text"], record["text"])
        same([row[:2] for row in choice["meta_info"]["output_token_logprobs"]],
             [list(row) for row in zip(record["logprobs"], record["completion_ids"])])
        same(choice["meta_info"]["finish_reason"]["type"], record["finish"])
    reply = s.post("/inference/v1/generate",
                   {"token_ids": ids[0], "sampling_params": dict(SAMPLED, n=3, max_tokens=24, logprobs=1)})
    for choice, record in zip(reply["choices"], records):
        same(choice["token_ids"], record["completion_ids"])
        content = choice["logprobs"]["content"]
        same([c["logprob"] for c in content], record["logprobs"])
        same([(c["token"], c["token_id"]) for c in content],
             [("token_id:%d" % t, t) for t in record["completion_ids"]])
        assert all(c["rank"] >= 1 and len(c["top_logprobs"]) == 1 for c in content)
        assert all(c["rank"] > 1 or c["top_logprobs"][0]["logprob"] == c["logprob"] for c in content)
        same(choice["weight_versions"], [{"version": 0, "start": 0, "end": len(content)}])


def long_streams_say_the_same(s):
    body = {"prompt": TEXTS[:2], "seed": 6, "max_tokens": LONG, "temperature": 1.3, "ignore_eos": True, "logprobs": 0,
            "return_token_ids": True}
    choices = s.post("/v1/completions", body)["choices"]
    told = told_choices(s.stream("/v1/completions", body))
    for choice in choices:
        t = told[choice["index"]]
        same((t["text"], t["ids"], t["logprobs"]),
             (choice["text"], choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        same(len(t["ids"]), LONG)


def stops_end_completions(s):
    for stop in (["\n"], ["own", "e h"], [" and the"]):
        options = [word for t in stop for word in ("--stop", t)]
        record, = generate(PROGRAM, TINY, [{"prompt": TEXTS[0]}], "--seed", "3", "--max-tokens", "48", *options)
        body = {"prompt": TEXTS[0], "seed": 3, "max_tokens": 48, "stop": stop, "return_token_ids": True}
        choice, = s.post("/v1/completions", body)["choices"]
        same(choice["token_ids"], record["completion_ids"])
        cut = min([record["text"].index(t) for t in stop if t in record["text"]], default=len(record["text"]))
        same(choice["text"], record["text"][:cut])
        same(told_choices(s.stream("/v1/completions", body))[0]["text"], choice["text"])
        kept, = s.post("/v1/completions", dict(body, include_stop_str_in_output=True))["choices"]
        same(kept["text"], record["text"])
    stop_id = record["completion_ids"][3]
    choice, = s.post("/v1/completions", dict(body, stop=None, stop_token_ids=[stop_id]))["choices"]
    n = record["completion_ids"].index(stop_id) + 1
    same((choice["token_ids"], choice["finish_reason"], choice["stop_reason"]),
         (record["completion_ids"][:n], "stop", stop_id))


def chats_are_those_of_generate(s):
    messages = [{"role": "user", "content": "Where does the river go?"}]
    record, = generate(PROGRAM, TINY, [{"messages": messages}], "--seed", "5", "--max-tokens", "20")
    body = {"model": "tiny", "messages": messages, "seed": 5, "max_tokens": 20, "logprobs": True, "top_logprobs": 2,
            "return_token_ids": True, "lockstep": True}
    reply = s.post("/v1/chat/completions", body)
    choice, = reply["choices"]
    same(reply["prompt_token_ids"], record["prompt_ids"])
    same((choice["message"]["content"], choice["token_ids"], choice["lockstep"]["logprob_bits"]),
         (record["text"], record["completion_ids"], record["logprob_bits"]))
    same([c["logprob"] for c in choice["logprobs"]["content"]], record["logprobs"])
    events = list(s.stream("/v1/chat/completions", dict(body, stream_options={"include_usage": True})))
    same("".join(c["delta"]["content"] for e in events for c in e["choices"]), record["text"])
    same(events[-1]["usage"]["completion_tokens"], len(record["completion_ids"]))


def prompts_have_the_bits_of_decoding(s):
    body = {"prompt": TEXTS[0], "seed": 9, "max_tokens": 40, "return_token_ids": True, "logprobs": 0, "lockstep": True,
            "ignore_eos": True}
    choice, = s.post("/v1/completions", body)["choices"]
    bits, n = choice["lockstep"]["logprob_bits"], len(choice["prompt_token_ids"])
    whole = choice["prompt_token_ids"] + choice["token_ids"]
    again, = s.post("/v1/completions", {"prompt": whole, "max_tokens": 1, "prompt_logprobs": 1, "lockstep": True})["choices"]
    same(again["lockstep"]["prompt_logprob_bits"][n - 1 :], bits)
    rows = again["prompt_logprobs"]
    same((len(rows), rows[0]), (len(whole), None))
    for row, token in zip(rows[1:], whole[1:]):
        same(next(iter(row)), str(token), "the prompt's own token comes first")
        assert all(v["rank"] >= 1 for v in row.values())
    same([next(iter(r.values()))["logprob"] for r in rows[n:]], choice["logprobs"]["token_logprobs"])
    scored = s.post("/v1/score", {"sequences": [whole, whole[:9]]})
    same(scored["data"][0]["logprob_bits"][n - 1 :], bits)
    same(scored["data"][1]["logprob_bits"], scored["data"][0]["logprob_bits"][:8])
    same(scored["numerics"], "exact/2/f32")
    verdict = s.post("/lockstep/check", {})
    assert verdict["ok"] and verdict["differing_tokens"] == 0 and verdict["scored_tokens"] > 200, verdict


def both_distributions_are_told(s):
    prompt = [{"prompt": TEXTS[1]}]
    options = ["--max-tokens", "24", *AS_OPTIONS]
    raw, = generate(PROGRAM, TINY, prompt, *options)
    processed, = generate(PROGRAM, TINY, prompt, "--logprobs", "processed", *options)
    own, = s.post("/v1/completions", dict(SAMPLED, prompt=TEXTS[1], max_tokens=24,
                                          lockstep={"distributions": True, "mask": True}))["choices"]
    own = own["lockstep"]
    same(own["raw_logprob_bits"], raw["logprob_bits"])
    same(own["processed_logprob_bits"], processed["logprob_bits"])
    for mass, mask, token in zip(own["kept_mass"], own["mask"], raw["completion_ids"]):
        assert 0 < mass <= 1 and token in mask and len(mask) <= 40 and mask == sorted(mask), (mass, mask, token)
    assert min(own["kept_mass"]) < 1
    full, = s.post("/v1/completions", {"prompt": TEXTS[1], "seed": 1, "max_tokens": 8,
                                       "lockstep": {"distributions": True}})["choices"]
    same(full["lockstep"]["raw_logprob_bits"], full["lockstep"]["processed_logprob_bits"])
    same(full["lockstep"]["kept_mass"], [1] * 8)
    same(own["kept"], [len(mask) for mask in own["mask"]])


def draws_have_the_numbers_that_are_asked_for(s):
    """A request for one completion of many has its bits."""
    body = dict(SAMPLED, max_tokens=8, logprobs=0)
    many = s.post("/v1/completions", dict(body, prompt=TEXTS, n=3, lockstep=True))["choices"]
    for prompt, sample in ((1, 2), (3, 0)):
        one, = s.post("/v1/completions", dict(body, prompt=TEXTS[prompt],
                                              lockstep={"prompt": prompt, "sample": sample}))["choices"]
        same(one["lockstep"]["logprob_bits"], many[3 * prompt + sample]["lockstep"]["logprob_bits"])
        same((one["lockstep"]["prompt"], one["lockstep"]["sample"]), (prompt, sample))


def penalties_are_those_of_generate(s):
    prompt = [{"prompt": TEXTS[3]}]
    fields = {"presence_penalty": 12.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5}
    options = ["--max-tokens", "24", *AS_OPTIONS]
    plain, = generate(PROGRAM, TINY, prompt, *options)
    for name, value in fields.items():
        options += ["--" + name.replace("_", "-"), str(value)]
    record, = generate(PROGRAM, TINY, prompt, *options)
    assert record["completion_ids"] != plain["completion_ids"]
    assert {name: record["meta"][name] for name in fields} == fields and "presence_penalty" not in plain["meta"]
    own, = s.post("/v1/completions", dict(SAMPLED, prompt=TEXTS[3], max_tokens=24, lockstep=True, **fields))["choices"]
    same(own["lockstep"]["logprob_bits"], record["logprob_bits"])
    ids = record["prompt_ids"] + record["completion_ids"]
    scored, = s.post("/v1/score", {"sequences": [ids]})["data"]  # the model's own, whatever was drawn from
    same(scored["logprob_bits"][len(record["prompt_ids"]) - 1 :], record["logprob_bits"])


def requests_are_refused_by_name(s):
    ask = lambda more: dict({"prompt": [5, 6]}, **more)
    for status, word, path, body in (
            (400, "'prompt' is missing", "/v1/completions", {}),
            (400, "prompt", "/v1/completions", {"prompt": []}),
            (400, "vocabulary", "/v1/completions", {"prompt": [512]}),
            (400, "vocabulary", "/v1/completions", {"prompt": [-1]}),
            (400, "prompt[2]", "/v1/completions", {"prompt": [[1], "x", {}]}),
            (400, "context length", "/v1/completions", {"prompt": [3] * 5000}),
            (400, "context length", "/v1/completions", ask({"max_tokens": 5000})),
            (400, "logit_bias", "/v1/completions", ask({"logit_bias": {"5": 1}})),
            (400, "wishes", "/v1/completions", ask({"wishes": 3})),
            (400, "temperature", "/v1/completions", ask({"temperature": -1})),
            (400, "temperature", "/v1/completions", ask({"temperature": "warm"})),
            (400, "repetition_penalty", "/v1/completions", ask({"repetition_penalty": 0})),
            (400, "penalties", "/v1/completions", ask({"presence_penalty": 1, "lockstep": {"distributions": True}})),
            (400, "response_format", "/v1/completions", ask({"response_format": {"type": "json_object"}})),
            (400, "echo: this is not supported; prompt_logprobs", "/v1/completions", ask({"echo": True})),
            (404, "does not exist", "/v1/completions", ask({"model": "other"})),
            (400, "invalid JSON", "/v1/completions", b"{"),
            (400, "invalid JSON", "/v1/completions", b"[" * 100000),
            (400, "invalid JSON", "/v1/completions", b'{"a":' * 5000),
            (400, "expected an object", "/v1/completions", b"[]"),
            (400, "duplicate", "/v1/completions", b'{"prompt":[1],"prompt":[2]}'),
            (400, "messages", "/v1/chat/completions", {"messages": []}),
            (400, "top_logprobs", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}),
            (400, "sampling_params", "/generate", {"input_ids": [1], "sampling_params": {"regex": "a"}}),
            (400, "sequences", "/v1/score", {"sequences": [[1]]}),
            (400, "mask", "/v1/completions", ask({"lockstep": {"mask": True}})),
            (400, "lockstep.sample", "/v1/completions", ask({"lockstep": {"sample": 1 << 32}})),
            (400, "leave no numbers", "/v1/completions", ask({"n": 2, "lockstep": {"sample": (1 << 32) - 1}})),
            (400, "not supported", "/init_weight_transfer_engine", {}),
            (400, "not supported", "/load_lora_adapter", {"lora_name": "a"}),
            (400, "start_weight_update", "/update_weights", {"update_info": {"weight_dir": "/nowhere"}}),
            (400, "NCCL", "/update_weights", {"update_info": {"names": ["a"], "shapes": [[1]]}}),
            (400, "/nowhere", "/update_weights", {"weight_dir": "/nowhere"}),
            (400, "/nowhere", "/update_weights_from_disk", {"model_path": "/nowhere"}),
            (404, "no such path", "/v1/embeddings", {}),
    ):
        s.refuses(status, word, path, body)
    same(s.refuses(405, "POST", "/v1/completions", None, method="GET")["Allow"], "POST")
    s.refuses(405, "GET", "/health", b"", method="DELETE")
    same('lockstep:http_refused_total{model_name="tiny",status="other 4xx"}' in s.get("/metrics"), True)
    same(s.get("/openapi.json")["openapi"], "3.1.0")
    same(s.get("/get_world_size"), {"world_size": 1})
    same(s.get("/server_info")["enable_memory_saver"], False)



def one_server():
    s = Server(PROGRAM, TINY, "--batch", "8", "--guards", "on", "--poison", "on", "--chunk", "7",
               "--drafts", "5")
    for part in (completions_are_those_of_generate, long_streams_say_the_same, stops_end_completions, chats_are_those_of_generate,
                 prompts_have_the_bits_of_decoding, both_distributions_are_told,
                 draws_have_the_numbers_that_are_asked_for, penalties_are_those_of_generate,
                 requests_are_refused_by_name):
        part(s)
    s.is_idle()
    assert s.metric("lockstep:drafts_proposed_total") > s.metric("lockstep:drafts_accepted_total") > 0
    s.stop()


# ---- weights ----


def weights_change_while_decoding(folder):
    s = Server(PROGRAM, TINY, "--batch", "4")
    bare = other_weights(TINY, os.path.join(folder, "bare"), 1.25, files=())
    whole = other_weights(TINY, os.path.join(folder, "whole"), 0.75)
    body = {"prompt": TEXTS[0], "seed": 4, "max_tokens": LONGER, "ignore_eos": True, "return_token_ids": True, "lockstep": True}
    stream = s.stream("/v1/completions", body)
    events = [next(stream)]
    same(s.post("/update_weights", {"weight_dir": bare})["weight_version"], 1)
    same(s.post("/update_weights_from_disk", {"model_path": whole, "weight_version": "7"})["weight_version"], 7)
    events += list(stream)
    choices = [e["choices"][0] for e in events]
    ids = choices[0]["prompt_token_ids"] + [t for c in choices for t in c["token_ids"]]
    bits = [b for c in choices for b in c["lockstep"]["logprob_bits"]]
    versions = [v for c in choices for v in c["lockstep"]["weights"]]
    same((len(bits), versions[0], versions[-1]), (LONGER, 0, 7), "versions")
    assert sorted(versions) == versions
    n = len(choices[0]["prompt_token_ids"])
    first = versions.index(7)
    same(s.post("/v1/score", {"sequences": [ids]})["data"][0]["logprob_bits"][n - 1 + first :], bits[first:], "new bits")
    record = {"id": "0", "prompt_ids": ids[:n], "completion_ids": ids[n:], "meta": {"weights": versions}}
    one = other_weights(TINY, os.path.join(folder, "one"), 1.25)
    same(score_spans(PROGRAM, TINY, record, {0: TINY, 1: one, 7: whole}), bits, "bits of every version")
    # Nothing of the old weights is found again.
    fresh = Server(PROGRAM, whole)
    again = dict(body, max_tokens=20)
    same(s.post("/v1/completions", again)["choices"][0]["lockstep"]["logprob_bits"],
         fresh.post("/v1/completions", again)["choices"][0]["lockstep"]["logprob_bits"])
    fresh.stop()
    # vLLM's three steps, with its pause; what is staged is served at the end.
    s.post("/pause?mode=keep&clear_cache=false", {})
    same(s.get("/is_paused"), {"is_paused": True})
    s.post("/start_weight_update", {})
    s.post("/update_weights", {"update_info": {"weight_dir": bare}})
    same(s.get("/get_weight_version"), {"weight_version": "7"})
    s.post("/finish_weight_update", {"weight_version": "step-8"})
    info = s.get("/weight_info")
    same((info["version"], info["weight_version"]), (8, "step-8"))
    s.post("/resume", {})
    broken = other_weights(TINY, os.path.join(folder, "broken"), 1.0)
    with open(os.path.join(broken, "model.safetensors"), "r+b") as file:
        file.truncate(100000)
    s.refuses(400, "broken", "/update_weights", {"weight_dir": broken})
    assert s.post("/lockstep/check", {})["ok"]
    same(s.post("/weight_checker", {"action": "compare", "baseline": "0"})["equal"], False)
    s.is_idle()
    s.stop()


def a_killed_update_leaves_one_version(folder):
    state = os.path.join(folder, "state.json")
    versions = [other_weights(TINY, os.path.join(folder, "v%d" % i), 1.125 + i / 8, files=() if i % 2 else ("config.json",))
                for i in range(4)]
    bits = {}
    body = {"prompt": TEXTS[0], "seed": 4, "max_tokens": 12, "temperature": 0, "lockstep": True}
    random_delay = random.Random(17)
    newest = 0
    for attempt in range(8):
        s = Server(PROGRAM, TINY, "--state", state)
        info = s.get("/weight_info")
        assert info["version"] >= newest, "versions never go back"
        newest = info["version"]
        found = s.post("/v1/completions", body)["choices"][0]["lockstep"]
        key = os.path.basename(info["path"])
        same(bits.setdefault(key, found["logprob_bits"]), found["logprob_bits"], "one complete version: " + key)
        connection = socket.create_connection((s.host, s.port))
        for directory in versions:
            data = json.dumps({"weight_dir": directory}).encode()
            connection.sendall(b"POST /update_weights HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        time.sleep(random_delay.random() * 0.06)
        s.stop(signal.SIGKILL)
        connection.close()
    assert len(bits) > 1 and len(set(map(str, bits.values()))) == len(bits), "updates were reached: %s" % list(bits)
    os.rename(versions[0], versions[0] + ".gone")
    with open(state, "w") as file:
        json.dump({"version": 9, "path": versions[0]}, file)
    try:
        Server(PROGRAM, TINY, "--state", state)
    except AssertionError as error:
        assert "version 9" in str(error) and "gone" in str(error), error
    else:
        raise AssertionError("weights that are gone were passed over")


# ---- clients of other kinds ----


def head(path=b"/v1/completions", more=b""):
    return b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n"


def one_byte_at_a_time(s, data, limit):
    """Never silent for long, and never done: only the clock of the whole header ends it."""
    with socket.create_connection((s.host, s.port)) as c:
        begun = time.time()
        try:
            for byte in data:
                c.sendall(bytes([byte]))
                time.sleep(0.2)
        except ConnectionError:
            pass
    assert time.time() - begun < limit


def unclear_lengths(s):
    """A length that is told twice, or not clearly, and what is too long."""
    for more in (b"Content-Length: 5\r\nContent-Length: 5\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                 b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
                 b"Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n", b"Content-Length: +5\r\n",
                 b"Content-Length: 5x\r\n", b"Content-Length: -1\r\n", b"Content-Length : 5\r\n", b"Host: y\r\n"):
        got = s.raw(head(more=more) + b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n", wait=3)
        assert got == b"" or got.startswith(b"HTTP/1.1 400"), (more, got)
        same(got.count(b"HTTP/1.1 200"), 0, more)
    assert s.raw(head(more=b"Content-Length: 100000\r\n")).startswith(b"HTTP/1.1 413")
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    assert b" 200 " not in s.raw(head(more=b"Transfer-Encoding: chunked\r\n") + 8 * chunk)
    assert b" 200 " not in s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200000 + b"\r\n\r\n")
    assert s.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, wait=3).count(b" 200 ") == 0


def slow_and_gone(s, bits, expected, every, slack, alone):
    """Half a header, half a body, one byte at a time; clients that leave at every so many-th byte of a request."""
    body = json.dumps({"prompt": [7] * 50, "max_tokens": 3000, "ignore_eos": True, "n": 2, "stream": True}).encode()
    whole = head(more=b"Content-Length: %d\r\n" % len(body)) + body
    slow = [socket.create_connection((s.host, s.port)) for _ in range(40)]
    for i, c in enumerate(slow):
        c.sendall(whole[:20] if i % 2 else head(more=b"Content-Length: 500\r\n") + b"{")
    begun = time.time()
    trickle = threading.Thread(target=one_byte_at_a_time, args=(s, whole, 8 * slack))
    trickle.start()
    for at in list(range(0, len(whole), every)) + [len(whole)] * 6:
        c = socket.create_connection((s.host, s.port))
        c.sendall(whole[:at])
        if at % 2:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if at == len(whole):
            c.recv(200)
        c.close()
    # One that ends its own side only may still read, and is served.
    half = socket.create_connection((s.host, s.port))
    asked = body.replace(b"3000", b"30")
    half.sendall(head(more=b"Content-Length: %d\r\n" % len(asked)) + asked)
    half.shutdown(socket.SHUT_WR)
    same(bits(), expected, "an honest client beside them")
    if alone:
        s.is_idle()
    got = b""
    while part := half.recv(65536):
        got += part
    assert b"data: [DONE]" in got, got
    half.close()
    for c in slow:
        c.settimeout(10 * slack)
        try:
            while c.recv(4096):
                pass
        except ConnectionError:
            pass
        c.close()
    assert time.time() - begun < 9 * slack, "slow clients are ended by the clock"
    trickle.join()


def hostile_round(s, bits, expected, every=9, n_idle=500, slack=1, alone=True):
    unclear_lengths(s)
    slow_and_gone(s, bits, expected, every, slack, alone)
    # Two requests in one write are two.
    same(s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2, wait=3 * slack).count(b"HTTP/1.1 200"), 2)
    idle = [socket.create_connection((s.host, s.port)) for _ in range(n_idle)]
    same(bits(), expected, "beside idle connections")
    for c in idle:
        c.close()


def hostile_server(*more):
    """A small one that ends slow clients soon, its answers to an honest request, and what they must be."""
    s = Server(PROGRAM, TINY, "--batch", "4", "--body-bytes", "65536", "--idle-seconds", "1", "--body-seconds", "1",
               "--poison", "on", "--guards", "on", *more)
    honest = {"prompt": TEXTS, "seed": 2, "max_tokens": 16, "lockstep": True}
    bits = lambda: [c["lockstep"]["logprob_bits"]
                    for c in s.post("/v1/completions", honest, timeout=600)["choices"]]  # sanitizers take their time
    return s, bits, bits()


def hostile_clients_change_nothing():
    s, bits, expected = hostile_server()
    hostile_round(s, bits, expected)
    s.is_idle()
    assert s.metric("lockstep:clients_gone_total") >= 5 and s.metric("lockstep:connections_timed_out_total") >= 1
    s.stop()


# ---- the same for as long as --seconds says ----


def resident_mb(s):
    with open("/proc/%d/status" % s.process.pid) as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS:"))


def a_gigabyte(s):
    """Chunks without an end, and a length that would be one: both are cut off."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection((s.host, s.port), timeout=60) as c:
        c.sendall(head(more=b"Transfer-Encoding: chunked\r\n"))
        sent = 0
        try:
            while sent < 1 << 30:
                sent += c.send(chunk)
        except OSError:
            pass
    assert sent < 1 << 28, sent
    assert b" 200 " not in s.raw(head(more=b"Content-Length: 1073741824\r\n") + b" " * 1000)


def odd_bodies(s):
    """Deep, broken and lying JSON: each is refused, none with 5xx."""
    for body in (b"[" * 60000, b'{"a":' * 10000, b'{"prompt":' + b"[" * 30000, b"{}", b"\xff\xfe" * 500, b"nul",
                 b'{"prompt":[1e999]}', b'{"prompt":["' + b"\\ud800" * 5000 + b'"]}', b'{"prompt":[1],"max_tokens":-1}'):
        status = s.request("POST", "/v1/completions", body, timeout=600)[0]
        assert status in (400, 413), (status, body[:40])


def secrets(s, tokens):
    """Requests whose prompts nobody else has, salted and not, half of them dropped."""
    body = {"prompt": [tokens] * 4, "max_tokens": 200, "ignore_eos": True, "seed": 3, "cache_salt": str(tokens[0])}
    data = json.dumps(dict(body, stream=True)).encode()
    c = socket.create_connection((s.host, s.port))
    c.sendall(head(more=b"Content-Length: %d\r\n" % len(data)) + data)
    s.post("/v1/completions", dict(body, max_tokens=8), timeout=600)
    c.close()


class Honest(threading.Thread):
    """An honest client that asks again and again; the first other bit, or refusal, is kept."""

    def __init__(self, bits, expected):
        super().__init__(daemon=True)
        self.bits, self.expected, self.n, self.error, self.ends = bits, expected, 0, None, False

    def run(self):
        while not self.ends and self.error is None:
            try:
                same(self.bits(), self.expected, "the honest client")
                self.n += 1
            except BaseException as error:
                self.error = error

    def finish(self):
        self.ends = True
        self.join(600)
        if self.error is not None:
            raise self.error


def soak(seconds):
    """Hostile clients of every kind and new weights, for so long, beside an honest client: its bits stay, memory is bounded,
    and in the end every slot and page is back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server's as well
    n_idle = min(10000, hard // 2 - 200)
    s, bits, expected = hostile_server("--connections", str(n_idle + 1000))
    honest = Honest(bits, expected)
    honest.start()
    begun, rounds, first = time.time(), 0, None
    while time.time() - begun < seconds or rounds == 0:
        hostile_round(s, bits, expected, every=1 if rounds % 4 == 0 else 7, n_idle=n_idle, slack=10, alone=False)
        odd_bodies(s)
        a_gigabyte(s)
        side_by_side(*(lambda t=t: secrets(s, [t, 400 + t, 9, t]) for t in range(3, 11)))
        s.post("/update_weights", {"weight_dir": TINY}, timeout=600)
        rounds += 1
        first = first or resident_mb(s)
        print("%4.0f s: round %d, %d honest requests, %d MB" % (time.time() - begun, rounds, honest.n, resident_mb(s)),
              flush=True)
        assert honest.error is None, honest.error
        assert resident_mb(s) < first + 512, "memory grows: %d MB after the first round, now %d" % (first, resident_mb(s))
    honest.finish()
    s.is_idle(120)
    assert "Sanitizer" not in s.said(), s.said()
    s.stop()
    print("soak: %d rounds, %d honest requests, each with the same bits, %d idle connections a round" % (
        rounds, honest.n, n_idle))


def full_queues_and_wrong_keys_are_refused(folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("first-key\nsecond-key\n")
    s = Server(PROGRAM, TINY, "--batch", "1", "--queue", "1", "--api-key-file", keys)
    right = {"Authorization": "Bearer second-key"}
    long = {"prompt": [5], "max_tokens": 4000, "ignore_eos": True, "request_id": "long"}
    for headers in (None, {"Authorization": "Bearer second"}, {"Authorization": "Bearer second-key2"},
                    {"Authorization": "second-key"}, {"Authorization": "Bearer "}):
        s.refuses(401, "API key", "/v1/completions", long, headers=headers)
    same(s.request("GET", "/health")[0], 200)
    s.request("POST", "/pause?mode=keep", {}, right)
    waiting = []
    for _ in range(2):
        c = socket.create_connection((s.host, s.port))
        data = json.dumps(long).encode()
        c.sendall(head(more=b"Authorization: Bearer first-key\r\nContent-Length: %d\r\n" % len(data)) + data)
        waiting.append(c)
    until = time.time() + 20
    while "lockstep:requests_waiting{model_name=\"tiny\"} 2" not in s.request("GET", "/metrics", None, right)[2]:
        assert time.time() < until
    same(s.refuses(429, "unfinished", "/v1/completions", long, headers=right)["Retry-After"], "1")
    same(s.request("POST", "/abort_requests", {"request_ids": ["long"]}, right)[2]["message"], "2 requests aborted")
    for c in waiting:
        assert b'"abort"' in c.recv(65536)
        c.close()
    s.request("POST", "/resume", {}, right)
    same(s.request("POST", "/v1/completions", dict(long, max_tokens=3), right)[0], 200)
    s.stop()


def a_stop_lets_streams_end():
    s = Server(PROGRAM, TINY)
    stream = s.stream("/v1/completions", {"prompt": [5], "max_tokens": LONGER, "ignore_eos": True, "return_token_ids": True})
    n = len(next(stream)["choices"][0]["token_ids"])
    s.process.send_signal(signal.SIGTERM)
    n += sum(len(e["choices"][0]["token_ids"]) for e in stream)
    same((n, s.process.wait(60)), (LONGER, 0))


def main():
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "answers": one_server,
            "weights": lambda: weights_change_while_decoding(folder),
            "kills": lambda: a_killed_update_leaves_one_version(folder),
            "hostile": hostile_clients_change_nothing,
            "limits": lambda: full_queues_and_wrong_keys_are_refused(folder),
            "stop": a_stop_lets_streams_end,
        }
        if sys.argv[3:4] == ["--seconds"]:
            return soak(float(sys.argv[4]))
        for name in sys.argv[3:] or parts:
            begun = time.time()
            parts[name]()
            print("%s: ok, %.1f s" % (name, time.time() - begun), flush=True)


main()
