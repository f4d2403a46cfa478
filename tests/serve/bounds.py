"""What one client can take from a server and from others: memory, time, turns, the server's end. Usage:
bounds.py PROGRAM SOURCE_DIR [PART..]

Standard library only. No bound here is a clock's: costs are held against other costs, or what comes first against what
comes later."""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from serving import Server, side_by_side

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
SLOW = os.environ.get("LS_SANITIZED") == "1"


def head(body, path="/v1/completions", key=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    own = b"" if key is None else b"Authorization: Bearer %s\r\n" % key.encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), own, len(data)) + data


def send(s, data):
    c = socket.create_connection((s.host, s.port), timeout=300)
    c.sendall(data)
    return c


def read_status(c):
    """The status of the reply that comes, and its body."""
    got = b""
    while part := c.recv(1 << 20):
        got += part
        begin = got.find(b"\r\n\r\n")
        if begin >= 0:
            length = next(int(line[15:]) for line in got[:begin].split(b"\r\n") if line.lower().startswith(b"content-length:"))
            if len(got) >= begin + 4 + length:
                return int(got.split(b" ", 2)[1]), json.loads(got[begin + 4 :])
    raise AssertionError("no whole reply: %r" % got[:200])


def leave(c):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


def memory(s, what):
    with open("/proc/%d/status" % s.process.pid) as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(what + ":"))


def processor(s):
    """Seconds of processor time of the server."""
    with open("/proc/%d/stat" % s.process.pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(s, call):
    begun = processor(s)
    call()
    return processor(s) - begun


def until(true, what, seconds=120):
    end = time.time() + seconds
    while not true():
        assert time.time() < end, what
        time.sleep(0.005)


# ---- clients that leave ----


def clients_leave_while_they_wait():
    """Groups whose clients leave before the engine has had them: the address sanitizer looks on."""
    s = Server(PROGRAM, TINY, "--batch", "1")
    busy = send(s, head({"prompt": [5], "max_tokens": 4000, "ignore_eos": True}))
    for n in (1, 3, 1, 8) * (5 if SLOW else 20):
        waiting = [send(s, head({"prompt": [[7], [8]], "max_tokens": 9, "n": n, "stream": n == 3})) for _ in range(6)]
        for c in waiting:
            leave(c)
    until(lambda: s.metric("lockstep:requests_waiting") == 0, "those who left wait no more")
    # With their queue held up as well: half of them leave and are counted.
    s.post("/pause?mode=keep", {})
    gone = s.metric("lockstep:clients_gone_total")
    waiting = [send(s, head({"prompt": [7], "max_tokens": 9, "n": 4})) for _ in range(20)]
    until(lambda: s.metric("lockstep:requests_waiting") == 80, "they wait")
    for c in waiting[::2]:
        leave(c)
    until(lambda: s.metric("lockstep:clients_gone_total") == gone + 10, "they are counted")
    # The others leave at the moment at which all is given up: whichever the server sees first.
    for c in waiting[1::2]:
        leave(c)
    s.post("/pause?mode=abort", {})
    s.post("/resume", {})
    leave(busy)
    s.is_idle()
    s.stop()
    assert "Sanitizer" not in s.said(), s.said()


def aborted_scores_are_no_scores():
    """What was cancelled before it was computed is not told as zeros."""
    s = Server(PROGRAM, TINY, "--batch", "1", "--chunk", "4")
    score = send(s, head({"sequences": [[5] * 4000] * 8}, "/v1/score"))
    rest = send(s, head({"token_ids": [5] * 4000, "sampling_params": {"max_tokens": 9, "prompt_logprobs": 0}, "lockstep": True},
                        "/inference/v1/generate"))
    until(lambda: s.metric("lockstep:requests_waiting") >= 8, "they wait")
    s.post("/abort_request", {"abort_all": True})
    status, reply = read_status(score)
    assert status == 503 and "aborted" in reply["error"]["message"], (status, reply)
    status, reply = read_status(rest)
    assert status == 200 and reply["prompt_logprobs"] is None, reply
    assert "prompt_logprob_bits" not in reply["choices"][0]["lockstep"]
    s.stop()


# ---- the end ----


def stop_in_a_tick(n):
    """Whether anybody had to be sent away: a tick of n tokens lasted longer than what cancelled requests have."""
    s = Server(PROGRAM, TINY, "--batch", "2", "--chunk", "whole", "--tick-tokens", "60000", "--max-length", "60000",
               "--threads", "1", "--drain-seconds", "0")
    prompt = lambda n: {"prompt": [5] * n, "max_tokens": 1}
    if n is None:  # the time of a tick is quadratic
        n, took = 2000, 0
        while took < 0.25:
            n, begun = n * 2, time.time()
            s.post("/v1/completions", prompt(n))
            took = time.time() - begun
        n = int(n * (8 / took) ** 0.5)
    waiting = [send(s, head(prompt(min(n, 59000))))]
    time.sleep(0.2)
    waiting += [send(s, head(dict(prompt(5), stream=True))), send(s, head(prompt(6))), send(s, head({}, "/pause?mode=wait")),
                send(s, head({"weight_dir": TINY}, "/update_weights"))]
    time.sleep(0.2)
    s.process.terminate()
    said = [read_status(c)[0] for c in (waiting[0], waiting[2], waiting[3])]
    code = s.process.wait(600)
    assert code == 0, "exit code %d: %s" % (code, s.said())
    assert set(said) <= {200, 503}, said
    return 503 in said, n


def a_stop_does_not_wait_for_a_tick():
    """A tick that lasts: whoever waits is sent away, and the end is a good one. The machine may have become faster meanwhile."""
    sent_away, n = stop_in_a_tick(None)
    while not sent_away and n < 59000:
        sent_away, n = stop_in_a_tick(int(n * 1.5))
    assert sent_away, "%d tokens are not enough" % n


# ---- memory and time of one request ----


def one_request_takes_little():
    s = Server(PROGRAM, TINY, "--max-length", "200000", "--queue", "100000")
    before = memory(s, "VmRSS")
    # 62 bytes that ask for gigabytes: sent, seen, dropped.
    for body, path in (({"token_ids": [5], "sampling_params": {"n": 4096, "logprobs": 256}}, "/inference/v1/generate"),
                       ({"messages": [{"role": "user", "content": "x"}], "n": 128, "logprobs": True, "top_logprobs": 20},
                        "/v1/chat/completions")):
        c = send(s, head(body, path))
        until(lambda: s.metric("lockstep:requests_running") > 0, "it runs")
        grown = memory(s, "VmHWM") - before
        leave(c)
        s.is_idle()
        assert grown < 400 << 20, "%s: %d MB" % (body, grown >> 20)
    # What an answer would hold is known before it runs.
    s.refuses(400, "--request-bytes", "/v1/completions", {"prompt": [5], "n": 4096, "max_tokens": 1000, "logprobs": 256})
    # Stop texts: too many bytes, and as many as there may be.
    s.refuses(400, "stop", "/v1/completions", {"prompt": [5], "stop": "s" * (4 << 20)})
    s.post("/v1/completions", {"prompt": [5], "max_tokens": 2, "stop": ["%02d" % i + "s" * 1000 for i in range(64)]})
    s.stop()


def long_texts_cost_no_more_than_their_bytes():
    """A text that cannot fit is not tokenised: it costs what reading it costs."""
    s = Server(PROGRAM, TINY)
    text = "word and number 12345 " * ((14 << 20) // 22)
    refuse = lambda word, body: lambda: s.refuses(400, word, "/v1/completions", body)
    read = cost(s, refuse("cache_salt", {"cache_salt": 5, "user": text}))
    refused = cost(s, refuse("context length", {"prompt": text}))
    assert refused < 3 * read, "%.2f s of processor, %.2f s to read it alone" % (refused, read)
    s.stop()


def results_are_bounded_as_they_come():
    """An answer without a length that grows beyond what a request may hold is ended with a sentence; others go on."""
    s = Server(PROGRAM, TINY, "--request-bytes", "1048576", "--max-length", "4096")
    body = {"token_ids": [5, 6], "sampling_params": {"logprobs": 200, "ignore_eos": True, "n": 2}}
    small = {"prompt": [5], "max_tokens": 8, "seed": 1, "lockstep": True}
    alone = s.post("/v1/completions", small)["choices"][0]["lockstep"]["logprob_bits"]
    beside = side_by_side(lambda: s.refuses(400, "--request-bytes", "/inference/v1/generate", body),
                          lambda: s.post("/v1/completions", small)["choices"][0]["lockstep"]["logprob_bits"])[1]
    assert beside == alone
    s.is_idle()
    until(lambda: s.metric("lockstep:held_bytes") == 0, "nothing is held")
    s.stop()


def all_requests_together_are_bounded():
    s = Server(PROGRAM, TINY, "--held-bytes", "4194304", "--body-bytes", "8388608")
    assert send_big(s) == 429
    assert s.post("/v1/completions", {"prompt": [5], "max_tokens": 2})["choices"]
    s.stop()


def send_big(s):
    """A body that is beyond what all may hold is refused by its header."""
    c = socket.create_connection((s.host, s.port), timeout=60)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
    status = read_status(c)[0]
    c.close()
    return status


# ---- turns ----


def pauses_hold_up_nobody():
    """A pause that waits does not keep others from aborting what it waits for, nor from resuming."""
    s = Server(PROGRAM, TINY, "--max-length", "100000", "--batch", "2")
    long = send(s, head({"prompt": [5], "max_tokens": 90000, "ignore_eos": True, "request_id": "long"}))
    until(lambda: s.metric("lockstep:requests_running") == 1, "it runs")
    pause = send(s, head({}, "/pause?mode=wait"))
    until(lambda: s.get("/is_paused")["is_paused"], "it is paused")
    said = s.post("/abort_requests", {"request_ids": ["long"]}, timeout=600)["message"]
    assert said == "1 requests aborted", said
    assert read_status(pause)[0] == 200 and read_status(long)[1]["choices"][0]["finish_reason"] == "abort"
    # And the other way round: resumed while it waits.
    s.post("/resume", {})
    long = send(s, head({"prompt": [5], "max_tokens": 90000, "ignore_eos": True}))
    until(lambda: s.metric("lockstep:requests_running") == 1, "it runs")
    pause = send(s, head({}, "/pause?mode=wait"))
    until(lambda: s.get("/is_paused")["is_paused"], "it is paused")
    s.post("/resume", {}, timeout=600)
    assert read_status(pause)[0] == 200
    assert s.metric("lockstep:requests_running") == 1, "it goes on"
    # What came behind a pause that waits does not keep it waiting, and runs when it is over.
    pause = send(s, head({}, "/pause?mode=wait"))
    until(lambda: s.get("/is_paused")["is_paused"], "it is paused")
    later = send(s, head({"prompt": [6], "max_tokens": 3}))
    until(lambda: s.metric("lockstep:requests_waiting") == 1, "it waits")
    leave(long)
    assert read_status(pause)[0] == 200 and s.metric("lockstep:requests_waiting") == 1
    s.post("/resume", {})
    assert read_status(later)[0] == 200
    s.stop()


def few_do_not_wait_for_many():
    """One client's many completions: another's few have a slot as soon as one is free, by connection and by key."""
    s = Server(PROGRAM, TINY, "--batch", "2")
    many = send(s, head({"prompt": [5], "n": 200, "max_tokens": 60, "ignore_eos": True}))
    until(lambda: s.metric("lockstep:requests_running") == 2, "they run")
    done = s.metric('lockstep:completions_total')  # by stop: none; what counts is what is left
    s.post("/v1/completions", {"prompt": [6], "max_tokens": 5})
    left = s.metric("lockstep:requests_waiting")
    assert left > 150, "%d of 200 are left (%s)" % (left, done)
    leave(many)
    s.is_idle()
    s.stop()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "keys"), "w") as file:
            file.write("one\ntwo\n")
        s = Server(PROGRAM, TINY, "--batch", "2", "--queue", "200", "--api-key-file", file.name)
        two = {"Authorization": "Bearer two"}
        many = [send(s, head({"prompt": [5], "max_tokens": 60, "ignore_eos": True}, key="one")) for _ in range(300)]
        waiting = lambda: next(float(line.rsplit(" ", 1)[1]) for line in s.request("GET", "/metrics", None, two)[2].splitlines()
                               if line.startswith("lockstep:requests_waiting{"))
        until(lambda: waiting() > 150, "they wait")
        before = waiting()
        for _ in range(5):
            assert s.request("POST", "/v1/completions", {"prompt": [6], "max_tokens": 2}, two)[0] == 200
        assert before - waiting() < 50, "%d of %d are left" % (waiting(), before)
        for c in many:
            leave(c)
        s.stop()


def the_urgent_take_the_slot():
    """A more urgent request has the slot of one that runs, which goes on later with the same bits."""
    s = Server(PROGRAM, TINY, "--batch", "1")
    body = {"prompt": [5], "max_tokens": 2000, "ignore_eos": True, "seed": 1, "lockstep": True}
    bits = lambda reply: reply["choices"][0]["lockstep"]["logprob_bits"]
    expected = bits(s.post("/v1/completions", body))
    long = send(s, head(dict(body, priority=3)))
    until(lambda: s.metric("lockstep:requests_running") == 1, "it runs")
    s.post("/v1/completions", {"prompt": [6], "max_tokens": 3})
    assert s.metrics("lockstep:requests_running", "lockstep:requests_waiting") in ([0, 1], [1, 0]), "the other one goes on"
    assert bits(read_status(long)[1]) == expected
    assert s.metric("lockstep:preemptions_total") >= 1
    s.stop()


def keys_say_who_may_what():
    with tempfile.TemporaryDirectory() as folder:
        api, admin = os.path.join(folder, "api"), os.path.join(folder, "admin")
        with open(api, "w") as file:
            file.write("plain\nurgent priority=-5\n")
        with open(admin, "w") as file:
            file.write("root\n")
        s = Server(PROGRAM, TINY, "--api-key-file", api, "--admin-key-file", admin)
        by = lambda key: {"Authorization": "Bearer " + key}
        ask = {"prompt": [5], "max_tokens": 1}
        for path in ("/pause", "/resume", "/update_weights", "/abort_requests", "/flush_cache", "/lockstep/check"):
            s.refuses(403, "may not", path, {}, headers=by("plain"))
            s.refuses(401, "key", path, {})
        assert s.request("POST", "/pause?mode=keep", {}, by("root"))[0] == 200
        assert s.request("POST", "/resume", {}, by("root"))[0] == 200
        for key, priority, status in (("plain", 0, 200), ("plain", 7, 200), ("plain", -1, 400), ("urgent", -5, 200),
                                      ("urgent", -6, 400), ("root", -100, 200)):
            found, _, reply = s.request("POST", "/v1/completions", dict(ask, priority=priority), by(key))
            assert found == status and (status == 200 or "priority" in reply["error"]["message"]), (key, priority, reply)
        s.stop()
        # One file alone: its keys may all there is, as ever.
        s = Server(PROGRAM, TINY, "--api-key-file", api)
        assert s.request("POST", "/pause?mode=keep", {}, by("plain"))[0] == 200
        s.stop()


# ---- one client's wishes at the cost of all ----


def distributions_cost_the_host_little():
    """What truncation left is weighed where the engine draws: telling it costs not much more than drawing it."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(TINY, "config.json")) as file:
            config = json.load(file)
        config.update(vocab_size=65536, num_hidden_layers=2)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        model = os.path.join(folder, "model")
        subprocess.run([PROGRAM, "init", "--config", file.name, "--out", model, "--threads", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        s = Server(PROGRAM, model, "--logprobs", "processed", "--threads", "1", "--batch", "1")
        n = 20 if SLOW else 60
        body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": n, "temperature": 0.7, "top_k": 50, "seed": 1,
                                                            "ignore_eos": True}}
        ask = lambda told: lambda: s.post("/inference/v1/generate", dict(body, lockstep=told), timeout=600)
        ask(False)()
        # In turns, and the least of each: the machine has other work too.
        turns = [[cost(s, ask({"distributions": wanted})) for wanted in (False, True)] for _ in range(3)]
        plain, told = map(min, zip(*turns))
        assert told < 1.5 * plain, "%.2f s of processor, %.2f s without" % (told, plain)
        s.stop()


PARTS = {
    "leave": clients_leave_while_they_wait,
    "scores": aborted_scores_are_no_scores,
    "stop": a_stop_does_not_wait_for_a_tick,
    "memory": one_request_takes_little,
    "texts": long_texts_cost_no_more_than_their_bytes,
    "results": results_are_bounded_as_they_come,
    "held": all_requests_together_are_bounded,
    "pauses": pauses_hold_up_nobody,
    "turns": few_do_not_wait_for_many,
    "urgent": the_urgent_take_the_slot,
    "keys": keys_say_who_may_what,
    "distributions": distributions_cost_the_host_little,
}

for name in sys.argv[3:] or PARTS:
    started = time.time()
    PARTS[name]()
    print("%s: ok, %.1f s" % (name, time.time() - started), flush=True)
