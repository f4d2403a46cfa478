"""The server's reading of HTTP: bytes that two readers could take for other requests, pipelines, clients that end their own
side and clients that are gone, and when it is ready. Usage: serve_frames.py PROGRAM SOURCE_DIR [OPTION..]"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

from serving import Server

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
SLOW = os.environ.get("LS_SANITIZED") == "1"  # a sanitizer takes its time
NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = json.dumps({"prompt": [5, 6], "max_tokens": 3, "seed": 1}).encode()
LONG = {"prompt": [5, 6], "max_tokens": 4000, "n": 8, "seed": 1, "ignore_eos": True}


def same(a, b, what=""):
    if a != b:
        raise AssertionError("%s\n%r\n%r" % (what, a, b))


def head(more=b"", path=b"/v1/completions", version=b"1.1"):
    return b"POST " + path + b" HTTP/" + version + b"\r\nHost: x\r\n" + more + b"\r\n"


def sized(body, more=b"", version=b"1.1"):
    return head(b"Content-Length: %d\r\n" % len(body) + more, version=version) + body


def chunked(lines):
    return head(b"Transfer-Encoding: chunked\r\n") + lines


def replies(got):
    return got.count(b"HTTP/1.1 200"), got.count(b"HTTP/1.")


def what_is_read_in_two_ways_is_no_request(s):
    """One answer, 400, and nothing of what is behind it in the same bytes."""
    n = len(SHORT)
    for data in (b"GET /health HTTP/1.1\nHost: x\n\n", b"GET /health HTTP/1.1\r\nHost: x\n\r\n",
                 head(b"X: a\nContent-Length: %d\r\n" % n) + SHORT, head(b"X: a\rContent-Length: %d\r\n" % n) + SHORT,
                 head(b"Content-Length: %d\r\nX: a\n" % n) + SHORT, head(b"X: a\r\n b\r\nContent-Length: %d\r\n" % n) + SHORT,
                 head(b"X: \x00\r\nContent-Length: %d\r\n" % n) + SHORT, head(b"X : a\r\nContent-Length: %d\r\n" % n) + SHORT,
                 chunked(b"%x\n" % n + SHORT + b"\r\n0\r\n\r\n"), chunked(b"%x\r\n" % n + SHORT + b"\n0\r\n\r\n"),
                 chunked(b"%x\r" % n + SHORT + b"\r\n0\r\n\r\n"), chunked(b"%x\r\n" % n + SHORT + b"\r\n0\r\n\n"),
                 chunked(b"%x;a\nb\r\n" % n + SHORT + b"\r\n0\r\n\r\n"), chunked(b"0x%x\r\n" % n + SHORT + b"\r\n0\r\n\r\n")):
        got = s.raw(data + NEXT * 2, wait=2)
        same(replies(got), (0, 1), data)
        assert got.startswith(b"HTTP/1.1 400 ") and b'"error"' in got and b"Connection: close" in got, (data, got)


def a_bad_length_has_one_answer(s):
    for more in (b"Content-Length: x\r\n", b"Content-Length: -1\r\n", b"Content-Length: +3\r\n", b"Content-Length: 1 1\r\n",
                 b"Content-Length:\r\n", b"Content-Length: 99999999999999999999999\r\n", b"Content-Length: 3, 3\r\n",
                 b"Content-Length: 3\r\nContent-Length: 3\r\n", b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
                 b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"):
        got = s.raw(head(more) + b"abc" + NEXT, wait=2)
        same(replies(got), (0, 1), (more, got))
        assert got.startswith(b"HTTP/1.1 400 "), got
    for data, status in ((b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n", b"505"), (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
                         (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70000 + b"\r\n\r\n", b"431")):
        got = s.raw(data + NEXT, wait=2)
        assert got.startswith(b"HTTP/1.1 " + status) and got.count(b"HTTP/1.1") == 1, got


def what_is_clear_is_served(s):
    """However it is cut, and several in a row."""
    one = sized(SHORT)
    text = s.post("/v1/completions", SHORT)["choices"][0]["text"]
    parts = chunked(b"".join(b"%X\r\n%s\r\n" % (len(p), p) for p in (SHORT[:1], SHORT[1:9], SHORT[9:])) + b"0\r\n\r\n")
    extended = chunked(b"00%x;name=\"value\"\r\n" % len(SHORT) + SHORT + b"\r\n000\r\nTrailer: 1\r\n\r\n")
    for data in (one, parts, extended, b"\r\n" + one):
        got = s.raw(data + NEXT + data + NEXT, wait=0.5)
        same(replies(got), (4, 4), got)
        same(got.count(json.dumps(text).encode()), 2)
    with socket.create_connection((s.host, s.port), timeout=20) as c:
        for byte in parts + NEXT:
            c.sendall(bytes([byte]))
        got = b""
        while replies(got)[0] < 2:
            got += c.recv(65536)
    # HTTP/1.0, and a body that waits for leave.
    got = s.raw(sized(SHORT, version=b"1.0"), wait=5)
    assert b" 200 OK" in got and json.dumps(text).encode() in got, got
    with socket.create_connection((s.host, s.port), timeout=20) as c:
        c.sendall(head(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(SHORT)))
        assert c.recv(4096).startswith(b"HTTP/1.1 100 ")
        c.sendall(SHORT)
        assert c.recv(4096).startswith(b"HTTP/1.1 200 ")
    # A hundred in one write are a hundred answers.
    with socket.create_connection((s.host, s.port), timeout=20) as c:
        c.sendall(NEXT * 100)
        c.shutdown(socket.SHUT_WR)
        got = b""
        while part := c.recv(65536):
            got += part
    same(got.count(b" 200 OK"), 100)


def read_all(c):
    got = b""
    while part := c.recv(65536):
        got += part
    return got


def who_ends_his_own_side_is_answered(s):
    """Every time: whole and streamed answers, short and long ones; and the connection ends behind the answer."""
    long = json.dumps(dict(LONG, n=1, max_tokens=400)).encode()
    stream = json.dumps(dict(LONG, n=1, max_tokens=400, stream=True)).encode()
    for version in (b"1.1", b"1.0"):
        for body in (SHORT, long, stream):
            for _ in range(5):
                with socket.create_connection((s.host, s.port), timeout=60) as c:
                    c.sendall(sized(body, version=version))
                    c.shutdown(socket.SHUT_WR)
                    got = read_all(c)
                same(got.count(b" 200 OK"), 1, got)
                assert (b"data: [DONE]" if body is stream else b'"finish_reason":"length"') in got, got[-300:]
                assert version == b"1.1" or b" 100 " not in got, got
    # In the middle of a request there is nothing to answer.
    for cut in (20, len(sized(SHORT)) - 3):
        with socket.create_connection((s.host, s.port), timeout=20) as c:
            c.sendall(sized(SHORT)[:cut])
            c.shutdown(socket.SHUT_WR)
            same(read_all(c), b"")


def who_is_gone_is_cancelled(s):
    """Closed, not only his own side, before anything of the answer: what is drawn for him ends."""
    s.is_idle()
    for more in ({}, {"stream": True}):
        gone, drawn = s.metric("lockstep:clients_gone_total"), s.metric("lockstep:generation_tokens_total")
        data = sized(json.dumps(dict(LONG, **more)).encode())
        clients = [socket.create_connection((s.host, s.port)) for _ in range(4)]
        for c in clients:
            c.sendall(data)
        time.sleep(0.05)
        for c in clients:
            c.close()
        s.is_idle()
        same(s.metric("lockstep:clients_gone_total") - gone, 4)
        drawn = s.metric("lockstep:generation_tokens_total") - drawn
        assert drawn < 4 * LONG["n"] * LONG["max_tokens"] / 2, drawn


def who_does_not_read_is_ended():
    """An answer that nobody takes: the clock ends it, the library's side first, then the client's."""
    s = Server(PROGRAM, TINY, "--batch", "8", "--idle-seconds", "5" if SLOW else "2")
    open_before = s.metric("lockstep:connections")
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect((s.host, s.port))
    c.sendall(sized(json.dumps(dict(LONG, n=16, max_tokens=400, logprobs=50)).encode()))
    while s.metric("lockstep:connections") > open_before:
        time.sleep(0.05)
    c.close()
    s.is_idle()
    s.stop()


def late_requests_meet_a_stop(s):
    """Connections that are there say something while the server stops: each is answered or ended, and the stop goes on."""
    clients = [socket.create_connection((s.host, s.port), timeout=60) for _ in range(200)]
    ends = threading.Event()

    def speak():
        for c in clients:
            try:
                c.sendall(NEXT)
                time.sleep(0.0005)
            except OSError:
                pass
        ends.set()

    speaker = threading.Thread(target=speak)
    speaker.start()
    s.stop()
    speaker.join(60)
    assert ends.is_set()
    for c in clients:
        try:
            got = read_all(c)
        except ConnectionError:
            got = b""
        assert got == b"" or got.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")), got
        c.close()


def it_listens_when_it_is_ready():
    """Whoever gets a connection gets an answer from the model; until then there is none. Its first lines tell what it has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PROGRAM, "serve", "--model", TINY, "--port", str(port)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    until = time.time() + 60
    while True:
        try:
            c = socket.create_connection(("127.0.0.1", port), timeout=60)
            break
        except ConnectionRefusedError:
            assert time.time() < until and process.poll() is None
    c.sendall(NEXT + sized(SHORT))
    c.shutdown(socket.SHUT_WR)
    same(read_all(c).count(b" 200 OK"), 2)
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == "lockstep: listening on http://127.0.0.1:%d\n" % port, lines
    assert lines[1].startswith("lockstep: ready: ") and " parameters, exact/2/f32, " in lines[1], lines
    assert lines[2].startswith("lockstep: memory: weights ") and lines[2].endswith(" MiB in all\n"), lines
    process.terminate()
    same(process.wait(60), 0)
    process.stdout.close()


def main():
    it_listens_when_it_is_ready()
    who_does_not_read_is_ended()
    s = Server(PROGRAM, TINY, "--batch", "8", *sys.argv[3:])
    parts = (what_is_read_in_two_ways_is_no_request, a_bad_length_has_one_answer, what_is_clear_is_served,
             who_ends_his_own_side_is_answered, who_is_gone_is_cancelled)
    for part in parts:
        begun = time.time()
        part(s)
        print("%s: ok, %.1f s" % (part.__name__, time.time() - begun), flush=True)
    s.is_idle()
    late_requests_meet_a_stop(s)


main()
