"""Clients of every kind at once for so many seconds: honest ones, whose bits must be those of a quiet server, beside others
that leave, send too much, ask for too much, read slowly, pause, abort, flush and change weights. Tells how long /health
took and how much memory the server had; with limits, holds them.

Usage: stress.py PROGRAM SOURCE_DIR [--seconds N] [--rss-mb N] [--health-ms N] [--seed N] [--option=VALUE of the server]..

Standard library only."""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time

from serving import Server

TEXTS = ["The river runs", "Once upon a time", "12+7=", "int max(int a, int b) {"]
HEAD = b"HTTP/1.1 "


# ---- small HTTP ----


def request(method, path, key, body):
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return (b"%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (
        method.encode(), path.encode(), key, len(data)) + data)


async def read_reply(reader):
    """Status and body of one reply; a stream is read to its end. None: the connection ended before."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if lengths:
        return status, await reader.readexactly(int(lengths[0].split(b":")[1]))
    parts = []
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        part = await reader.readexactly(size + 2)
        if size == 0:
            return status, b"".join(parts)
        parts.append(part[:-2])


# ---- honest clients ----


def honest_requests():
    """Path, body, and what of the reply must stay as it is."""
    sampled = {"seed": 11, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
    weighed = {"distributions": True}
    return [
        ("/v1/completions", dict(sampled, prompt=TEXTS, n=2, max_tokens=12, lockstep=True)),
        ("/v1/completions", dict(sampled, prompt=TEXTS[0], max_tokens=24, logprobs=4, lockstep=weighed)),
        ("/v1/completions", dict(sampled, prompt=[5, 6, 7], max_tokens=40, stream=True, return_token_ids=True, lockstep=True)),
        ("/v1/completions", {"prompt": TEXTS[1], "seed": 3, "max_tokens": 20, "stop": ["\n", "e h"], "lockstep": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Where does it go?"}], "seed": 1, "max_tokens": 16,
                                  "logprobs": True, "top_logprobs": 2, "lockstep": True}),
        ("/inference/v1/generate", {"token_ids": [9, 8, 7], "sampling_params": dict(sampled, max_tokens=16, prompt_logprobs=1),
                                    "lockstep": weighed}),
        ("/generate", {"input_ids": [4, 3, 2], "sampling_params": {"max_new_tokens": 16, "sampling_seed": 2},
                       "return_logprob": True, "lockstep": True}),
        ("/v1/score", {"sequences": [[5, 6, 7, 8, 9, 10], [3, 4, 5]]}),
    ]


VARYING = {"id", "request_id", "created", "slot", "cache_hit", "cached_tokens", "preemptions", "weights", "prompt_weights",
           "weight_version", "weight_versions", "e2e_latency", "usage"}


def plain(value):
    """A reply without what depends on the moment."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in VARYING}
    return [plain(v) for v in value] if isinstance(value, list) else value


def told_of(body):
    """What a reply says, a stream's pieces put together: they fall differently each time."""
    if not body.startswith(b"data: "):
        return plain(json.loads(body))
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line and line != "data: [DONE]"]
    choices = [e["choices"][0] for e in events]
    return ("".join(c["text"] for c in choices), [t for c in choices for t in c["token_ids"]],
            [b for c in choices for b in c["lockstep"]["logprob_bits"]], choices[-1]["finish_reason"])


class Stress:
    def __init__(self, server, keys, folder, seed):
        self.server, self.keys, self.folder = server, keys, folder
        self.random = random.Random(seed)
        self.counts, self.ends, self.failure = {}, False, None
        self.expected = []

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    async def ask(self, path, body, key="honest", method="POST"):
        """None where the server ended the connection."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port, limit=1 << 26)
        try:
            writer.write(request(method, path, self.keys[key], body))
            await writer.drain()
            return await read_reply(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        finally:
            writer.close()

    async def learn(self):
        for path, body in honest_requests():
            status, reply = await self.ask(path, body)
            assert status == 200, (path, status, reply)
            self.expected.append(told_of(reply))

    async def honest(self):
        """The same bits, or an answer that says why not: aborted by an operator, no room."""
        while not self.ends:
            i = self.random.randrange(len(self.expected))
            path, body = honest_requests()[i]
            reply = await self.ask(path, body)
            if reply is None:
                raise AssertionError("%s: an honest connection was ended" % path)
            status, text = reply
            if status in (429, 503):
                self.count("honest, no room: %s" % json.loads(text)["error"]["message"][:60])
                await asyncio.sleep(0.05)
                continue
            if status != 200:
                raise AssertionError("%s: %d: %s" % (path, status, text[:300]))
            if b'"abort"' in text:
                self.count("honest, aborted")
                continue
            if told_of(text) != self.expected[i]:
                raise AssertionError("%s: other bits:\n%s\n%s" % (path, told_of(text), self.expected[i]))
            self.count("honest, same bits")

    # ---- the others ----

    def body(self):
        """A request that asks for much."""
        r = self.random
        sampled = {"max_tokens": r.choice([1, 30, 300, 3000]), "ignore_eos": True, "seed": r.randrange(99)}
        if r.random() < 0.3:
            del sampled["max_tokens"]
        kind = r.randrange(5)
        if kind == 0:
            return "/v1/completions", dict(sampled, prompt=[[r.randrange(500) for _ in range(r.randrange(1, 60))]
                                           for _ in range(r.randrange(1, 9))], n=r.choice([1, 2, 8, 200]),
                                           stream=r.random() < 0.5, logprobs=r.choice([None, 0, 5, 256]))
        if kind == 1:
            return "/v1/chat/completions", dict(sampled, messages=[{"role": "user", "content": "x" * r.randrange(900)}] * r.randrange(1, 4),
                                                stream=r.random() < 0.7, logprobs=True, top_logprobs=r.choice([0, 20]))
        if kind == 2:
            return "/generate", {"input_ids": [7] * r.randrange(1, 300), "stream": r.random() < 0.5, "return_logprob": True,
                                 "sampling_params": {"max_new_tokens": r.choice([5, 500, 2000]), "n": r.choice([1, 40]),
                                                     "ignore_eos": True}}
        if kind == 3:
            return "/inference/v1/generate", {"token_ids": [3] * r.randrange(2, 200), "stream": r.random() < 0.3,
                                              "lockstep": {"distributions": True, "mask": r.random() < 0.5},
                                              "sampling_params": {"top_k": 50, "n": r.choice([1, 16]), "max_tokens": r.choice([4, 400]),
                                                                  "prompt_logprobs": r.choice([None, 0, 256])}}
        return "/v1/score", {"sequences": [[r.randrange(500) for _ in range(r.randrange(2, 500))] for _ in range(r.randrange(1, 30))]}

    async def leaver(self):
        """Leaves at any byte, while it waits, in the middle of an answer; or stays."""
        while not self.ends:
            reader, writer = await asyncio.open_connection(self.server.host, self.server.port, limit=1 << 26)
            try:
                data = request("POST", *((p := self.body())[0], self.keys["other"], p[1]))
                where = self.random.random()
                if where < 0.2:
                    data = data[: self.random.randrange(len(data))]
                writer.write(data)
                await writer.drain()
                if where < 0.7:
                    await asyncio.sleep(self.random.choice([0, 0.002, 0.02, 0.2]))
                elif where < 0.9:
                    await asyncio.wait_for(reader.read(self.random.choice([1, 100, 100000])), 0.5)
                else:
                    await asyncio.wait_for(read_reply(reader), 2)
                if self.random.random() < 0.5:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            except (ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass
            finally:
                writer.close()
            self.count("left")

    async def greedy(self):
        """Sizes that must be refused, or bounded."""
        few = {"prompt": [1, 2], "max_tokens": 2, "ignore_eos": True}
        while not self.ends:
            what = self.random.choice([
                ("/v1/completions", dict(few, max_tokens=4000, n=4096, logprobs=256)),
                ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"n": 4096, "logprobs": 256}}),
                ("/v1/completions", dict(few, stop="s" * self.random.choice([70000, 4 << 20]))),
                ("/v1/completions", dict(few, stop=["s" * 1000 + str(i) for i in range(64)])),
                ("/v1/completions", {"prompt": "word and " * ((15 << 20) // 9)}),
                ("/v1/completions", {"prompt": [7] * (4 << 20)}),
                ("/v1/completions", {"prompt": [[3] * 400] * 4000, "prompt_logprobs": 256, "max_tokens": 1}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "y" * 3000}] * 3000}),
                ("/v1/score", {"sequences": [[3, 4] * 1500] * 400}),
                ("/v1/completions", b"[" * (1 << 20)), ("/v1/completions", b'{"a":' * (1 << 18)),
                ("/v1/completions", b" " * (17 << 20)), ("/abort_request", b"[" * 500000)])
            try:
                reply = await asyncio.wait_for(self.ask(*what, key="other"), self.random.choice([0.3, 3]))
                if reply is not None and reply[0] not in (200, 400, 403, 413, 429, 503):
                    raise AssertionError("%s: %d: %s" % (what[0], reply[0], reply[1][:300]))
                self.count("greedy, %s" % (reply and reply[0]))
            except asyncio.TimeoutError:
                self.count("greedy, gave up")
            await asyncio.sleep(0.02)

    async def slow(self):
        """Sends slowly, or reads slowly."""
        while not self.ends:
            reader, writer = await asyncio.open_connection(self.server.host, self.server.port, limit=1024)
            try:
                data = request("POST", "/v1/completions", self.keys["other"],
                               {"prompt": [5], "n": 16, "max_tokens": 500, "ignore_eos": True, "logprobs": 5})
                if self.random.random() < 0.5:
                    for at in range(0, len(data), 7):
                        writer.write(data[at : at + 7])
                        await asyncio.sleep(0.05)
                else:
                    writer.write(data)
                    for _ in range(20):
                        await asyncio.wait_for(reader.read(100), 1)
                        await asyncio.sleep(0.05)
            except (ConnectionError, asyncio.TimeoutError):
                pass
            finally:
                writer.close()
            self.count("slow")

    async def operator(self):
        """Pauses, resumes, aborts, flushes, new weights (the same bits), without ever waiting for its own pause alone."""
        while not self.ends:
            await asyncio.sleep(self.random.random() * 0.3)
            what = self.random.randrange(8)
            if what < 3:
                path = ("/pause?mode=keep&clear_cache=false", "/pause?mode=wait", "/pause?mode=abort")[what]
                pause = asyncio.ensure_future(self.ask(path, {}, "admin"))
                await asyncio.sleep(self.random.random() * 0.2)
                if self.random.random() < 0.5:
                    await self.must("/abort_request", {"abort_all": True})
                await self.must("/resume", {})
                reply = await pause
                if reply is None or reply[0] != 200:
                    raise AssertionError("%s: %s" % (path, reply))
            elif what == 3:
                await self.must("/reset_prefix_cache", {})
            elif what == 4:
                await self.must("/update_weights", {"weight_dir": self.folder})
            elif what == 5:
                await self.ask("/start_weight_update", {}, "admin")
                await self.ask("/update_weights", {"update_info": {"weight_dir": self.folder}}, "admin")
                await self.ask("/finish_weight_update", {}, "admin")
            elif what == 6:
                reply = await self.ask("/pause", {}, "other")
                if reply is not None and reply[0] != 403:
                    raise AssertionError("a key that may not pause: %s" % (reply,))
            else:
                await self.ask("/lockstep/check", {}, "admin")
            self.count("operator")

    async def must(self, path, body):
        reply = await self.ask(path, body, "admin")
        if reply is None or reply[0] != 200:
            raise AssertionError("%s: %s" % (path, reply))

    async def guarded(self, client):
        try:
            await client()
        except Exception as error:
            self.failure = self.failure or error
            self.ends = True

    async def run(self, seconds):
        await self.learn()
        clients = [self.honest] * 6 + [self.leaver] * 10 + [self.greedy] * 2 + [self.slow] * 2 + [self.operator]
        tasks = [asyncio.ensure_future(self.guarded(c)) for c in clients]
        until = time.time() + seconds
        while time.time() < until and not self.ends:
            await asyncio.sleep(0.1)
            if self.server.process.poll() is not None:
                self.ends, self.failure = True, AssertionError("the server ended: " + self.server.said())
        self.ends = True
        await asyncio.wait(tasks, timeout=120)
        if self.failure is not None:
            raise self.failure
        for task in tasks:
            assert task.done(), "a client still waits"


# ---- measures ----


def memory_mb(pid, what):
    with open("/proc/%d/status" % pid) as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith(what + ":"))


def watch_health(host, port, ends, queue):
    """Milliseconds of /health, in a process of its own, so that they are the server's and not the other clients'."""
    found = []
    while not ends.is_set():
        begun = time.perf_counter()
        with socket.create_connection((host, port), timeout=60) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            got = b""
            while part := s.recv(4096):
                got += part
        assert b" 200 " in got.split(b"\r\n")[0], got
        found.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.02)
    queue.put(sorted(found))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("source")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rss-mb", type=int, help="memory that the server may have beside what it had when it was quiet")
    parser.add_argument("--health-ms", type=float, help="of the 99th percentile")
    parser.add_argument("--seed", type=int, default=1)
    o, more = parser.parse_known_args()
    model = os.path.join(o.source, "models", "tiny-text")
    keys = {"honest": b"honest-key", "other": b"other-key", "admin": b"admin-key"}
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("api", "honest-key\nother-key\n"), ("admin", "admin-key\n")):
            with open(os.path.join(folder, name), "w") as file:
                file.write(lines)
        server = Server(o.program, model, "--batch", "8", "--idle-seconds", "5", "--body-seconds", "5", "--queue", "1000",
                        "--api-key-file", os.path.join(folder, "api"), "--admin-key-file", os.path.join(folder, "admin"), *more)
        stress = Stress(server, keys, model, o.seed)
        ends, queue = multiprocessing.Event(), multiprocessing.Queue()
        watcher = multiprocessing.Process(target=watch_health, args=(server.host, server.port, ends, queue))
        quiet = memory_mb(server.process.pid, "VmRSS")
        watcher.start()
        try:
            asyncio.run(stress.run(o.seconds))
        finally:
            ends.set()
            if server.process.poll() is not None:
                print(server.said()[-8000:])
        health = queue.get(timeout=60)
        watcher.join()
        most = memory_mb(server.process.pid, "VmHWM")
        right = {"Authorization": "Bearer admin-key"}
        server.request("POST", "/resume", {}, right)
        server.request("POST", "/abort_request", {"abort_all": True}, right)
        left = -1
        for _ in range(600):
            server.request("POST", "/reset_prefix_cache", {}, right)
            text = server.request("GET", "/metrics", None, right)[2]
            left = sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                       if line.startswith(("lockstep:requests_running{", "lockstep:requests_waiting{", "lockstep:slots_used{",
                                           "lockstep:pages_used{")))
            if left == 0:
                break
            time.sleep(0.1)
        assert left == 0, "requests, slots or pages are left: " + text
        now = memory_mb(server.process.pid, "VmRSS")
        server.stop(timeout=300)
        said = server.said()
        assert "Sanitizer" not in said and "runtime error" not in said, said[-8000:]
        p99 = health[min(len(health) - 1, len(health) * 99 // 100)]
        for what in sorted(stress.counts):
            print("%6d %s" % (stress.counts[what], what))
        print("/health: %d times, median %.1f ms, 99th percentile %.1f ms, longest %.1f ms" % (
            len(health), health[len(health) // 2], p99, health[-1]))
        print("memory: %d MB when quiet, %d MB at most, %d MB at the end" % (quiet, most, now))
        assert stress.counts.get("honest, same bits", 0) > 0, "no honest request was answered"
        assert o.rss_mb is None or most - quiet < o.rss_mb, "more than %d MB beside the model" % o.rss_mb
        assert o.health_ms is None or p99 < o.health_ms, "/health takes longer than %g ms" % o.health_ms


if __name__ == "__main__":
    main()
