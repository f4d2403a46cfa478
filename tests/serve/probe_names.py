"""lockstep probe against lockstep serve, which has no fault, and against a stand-in with planted ones.

Usage: probe_names.py LOCKSTEP SOURCE_DIRECTORY
"""

import http.server
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
from serving import Server

LOCKSTEP, SOURCE = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))

EVERY = int(os.environ.get("LS_PROBE_EVERY", 1))  # under sanitizers each eighth case
TIME = ["--seconds", "600"] if EVERY > 1 else []  # where a request takes ten times as long

CASES = [  # dialect, fault, noise, exit code, cause
    ("vllm", "none", "5e-3", 0, None),
    ("llama.cpp", "none", "1e-4", 0, None),
    ("vllm", "cross-tail", "1e-6", 3, "prefix hit across different prompts"),
    ("vllm", "temperature", "1e-3", 3, "temperature on one side only"),
    ("sglang", "temperature", "1e-3", 0, None),  # which is what SGLang means its values to be
    ("vllm", "two-kernels", "0", 0, None),
    ("vllm", "two-kernels-far", "0", 3, "other arithmetic in decode"),  # by more than any type makes
    ("sglang", "clamp", "1e-4", 3, "log-probabilities clamped"),
    ("vllm", "likeliest", "1e-4", 3, "records of other tokens"),
    ("vllm", "grid", "1e-6", 3, "log-probabilities in low precision"),
    ("vllm", "zeros", "1e-5", 3, "log-probabilities missing"),
    ("vllm", "leak", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "replicas", "1e-4", 3, "not repeatable"),
    ("vllm", "pad-eight", "1e-4", 3, "padding leaks into the state"),
    ("vllm", "mixing", "1e-4", 3, "another sequence's state is read"),
    ("vllm", "neighbours", "1e-4", 3, "another sequence's state is read"),
    ("vllm", "rows", "1e-6", 3, "order of sums follows the batch"),
    ("llama.cpp", "shift", "1e-4", 3, "records shifted"),
    ("vllm", "scaled", "1e-3", 3, "log-probabilities scaled"),
    ("vllm", "probability", "1e-6", 3, "log-probabilities scaled"),  # which are no log-probabilities at all
    ("vllm", "missing-null", "1e-5", 3, "log-probabilities missing"),
    ("vllm", "missing-nan", "1e-5", 3, "log-probabilities missing"),
    ("vllm", "missing-sentinel", "1e-5", 3, "log-probabilities missing"),
    ("vllm", "first-missing", "1e-5", 3, "log-probabilities missing"),
    ("vllm", "template", "1e-3", 3, "other tokens than were sent"),
    ("vllm", "forks", "1e-4", 3, "fork is not a copy"),
    ("vllm", "late-from-four", "1e-4", 3, "records shifted"),  # shorter ones are right
    ("vllm", "template-bos", "1e-3", 3, "other tokens than were sent"),
    ("vllm", "flips", "0", 0, None),  # a coarse type's
    ("vllm", "leak-short", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "leak-ring", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "leak-sum", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "turns", "0", 3, "not repeatable"),
    ("llama.cpp", "bias-stays", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "marks-stay", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "marks-for-good", "1e-4", 3, "stale state of a reused slot"),
    ("vllm", "first-early", "1e-4", 3, "records shifted"),
    ("vllm", "bos-score", "1e-3", 3, "other tokens than were sent"),
    ("vllm", "stop-null", "1e-4", 3, "log-probabilities missing"),
    ("vllm", "seeds", "0", 3, "draws follow the slot"),
    ("llama.cpp", "tiles", "1e-6", 0, None),  # as its flash attention has them, and no length is wrong
    ("llama.cpp", "characters", "1e-6", 0, None),  # with this seed too few values for a floor
    ("vllm", "ties", "1e-2", 2, None),  # few experiments, and what is passed over is none that is off
    ("vllm", "hand-over", "1e-6", 3, "other arithmetic in decode"),
    ("vllm", "sums", "1e-6", 3, None),  # no cause of the list, and no decode is wrong
    ("vllm", "penalty", "1e-6", 3, "penalty on one side only"),
]


def probe(url, *words):
    command = [LOCKSTEP, "probe", url, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def check(what, condition, *said):
    if not condition:
        raise AssertionError(" ".join([what] + [str(s) for s in said]))
    print("ok: " + what)


def stand_in(directory, dialect, fault, noise):
    path = os.path.join(directory, "port")
    process = subprocess.Popen([sys.executable, os.path.join(HERE, "stand_in.py"), path, dialect, fault, noise])
    end = time.time() + 30
    while not os.path.exists(path) and time.time() < end:
        time.sleep(0.01)
    with open(path) as file:
        port = int(file.read())
    os.unlink(path)
    return process, "http://127.0.0.1:%d" % port


def try_case(directory, dialect, fault, noise, code, cause):
    process, url = stand_in(directory, dialect, fault, noise)
    try:
        # The experiments that any of these faults shows in; crowds are tried on the real one.
        limits = {"tiles": "1600", "characters": "1600", "ties": "300"}
        most = limits.get(fault, "1100" if dialect == "llama.cpp" else "1000")
        found, said, errors = probe(url, "--max-requests", most)
    finally:
        process.kill()
        process.wait()
    check("%s, %s" % (dialect, fault), found == code and said["cause"] == cause, found, errors[-300:],
          said and said["ranked"])
    if fault == "two-kernels":
        paths = {path["name"]: path for path in said["paths"]}
        check("  its kernels", paths["prefill"]["max"] == 0.0 and paths["decode"]["median"] > 1e-3 and
              said["verdict"].startswith("decode and prefill are different kernels"), paths, said["verdict"])
    check("  its convention", ("temperature" in (said["convention"] or "")) == (dialect == "sglang" and fault == "temperature"), said["convention"])
    if code == 3:
        check("  its requests", "curl -s " + url in said["repro_commands"], said.get("repro_commands"))


def try_hangs(directory):
    """Requests that are never answered are counted, and the end is kept: each costs a time-out, and they are many."""
    process, url = stand_in(directory, "vllm", "hangs", "1e-6")
    seconds, timeout, start = 4, 1, time.time()
    try:
        found, said, errors = probe(url, "--seconds", str(seconds), "--timeout", str(timeout))
    finally:
        process.kill()
        process.wait()
    took = time.time() - start
    check("a server that hangs", found == 3 and said["cause"] == "ends without an answer", found, errors[-300:], said)
    counted = re.search(r"(\d+) of (\d+) requests were never answered: (\d+) had no answer", said["ranked"][0]["evidence"])
    hung, asked, late = map(int, counted.groups())
    check("  its counts", 2 <= hung == late < asked, said["ranked"][0])
    check("  its requests", "curl -s " + url in said["repro_commands"], said.get("repro_commands"))
    # Asked to the end, the experiment of 34 lengths alone would take as many time-outs as it has prompts that hang.
    check("  its time", took < 3 * (seconds + timeout), took, said["seconds"])


def try_terminal(server):
    """The line of progress, while the server stands still after the plan was written."""
    terminal, end = pty.openpty()
    command = [LOCKSTEP, "probe", server.url, "--max-requests", "700"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    shown, last = b"", time.time() + 60
    while b"trying: " not in shown and time.time() < last and process.poll() is None:
        if b"plan" in shown:
            server.process.send_signal(signal.SIGSTOP)
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096)
    server.process.send_signal(signal.SIGCONT)
    code = process.wait(60)
    os.close(terminal)
    check("its progress on a terminal", code == 0 and re.search(rb"trying: \d+ of \d+ experiments, ", shown), code, shown[-300:])


class Apart(http.server.BaseHTTPRequestHandler):
    """Passes everything to `upstream`; what is generated there comes back a millionth away, as another kernel's."""

    upstream = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words):
        pass

    def pass_on(self, data):
        asked = urllib.request.Request(self.upstream + self.path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked) as reply:
                status, said = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, said = error.code, error.read()
        if self.path == "/v1/completions" and status == 200:
            answer = json.loads(said)
            for choice in answer["choices"]:
                values = (choice["logprobs"] or {}).get("token_logprobs", [])
                values[:] = [v - 1e-6 * (1 + i % 3) for i, v in enumerate(values)]
            said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_GET(self):
        self.pass_on(None)

    def do_POST(self):
        self.pass_on(self.rfile.read(int(self.headers["Content-Length"])))


def scale_last_norm(model, by):
    """Writes a checkpoint again, whose logits are that much larger."""
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    start = 8 + struct.unpack_from("<Q", data)[0]
    first, end = json.loads(data[8:start])["model.final_layernorm.weight"]["data_offsets"]
    for at in range(start + first, start + end, 4):
        struct.pack_into("<f", data, at, by * struct.unpack_from("<f", data, at)[0])
    with open(path, "wb") as file:
        file.write(data)


def try_checkpoint(server, weights, directory):
    """Both sides of the server agree as float32 does: what bf16 would make of the model is no excuse."""
    other = os.path.join(directory, "other")
    shutil.copytree(weights, other)
    scale_last_norm(other, 1.003)
    Apart.upstream = server.url
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Apart)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d" % proxy.server_port
    cases = ((weights, "700", 0, None), (other, "250", 3, "other weights or another formula"))
    for model, most, exit_code, cause in cases:
        code, said, errors = probe(url, "--model", model, "--max-requests", most)
        check("a server in float32 beside %s checkpoint" % ("its" if cause is None else "another"),
              code == exit_code and said["cause"] == cause, code, said and (said["expected"], said["ranked"]),
              errors[-300:])
    proxy.shutdown()


def main():
    server = Server(LOCKSTEP, os.path.join(SOURCE, "models/tiny-text"))
    code, said, errors = probe(server.url, *TIME)
    check("lockstep serve is clean", code == 0 and not said["different"] and said["floor"]["max"] == 0.0, code, errors)
    tried = [e["name"] for e in said["experiments"] if e["verdict"] == "clean"]
    check("and was tried", {"cached-many", "leavers", "load", "text", "cached-reset", "long", "pressed"} <= set(tried), tried)
    with tempfile.NamedTemporaryFile(mode="r", suffix=".html") as page:
        probe(server.url, "--max-requests", "60", "--html", page.name)
        drawn = re.findall("<svg[^>]*>", open(page.name).read())
        check("every drawing has a size of its own", drawn and all("viewBox=" in one for one in drawn), drawn[:1])
    try_terminal(server)
    code, said, errors = probe(server.url, "--dry-run")
    check("a plan asks nothing", code == 0 and said is None and "not tried" in errors and "limits" in errors, errors)
    code, said, errors = probe(server.url, "--max-requests", "30")
    check("a limit is kept", any("no room" in e.get("note", "") for e in said["experiments"]), errors)
    check("and few experiments say nothing", code == 2 and said["verdict"].startswith("stopped early") and
          not said["different"] and "5 of 46 experiments were run" in errors, code, said["verdict"], errors)
    code, _, errors = probe(server.url + "/nothing")
    check("what is no server is refused", code == 2 and "--dialect" in errors, code, errors)
    server.stop(signal.SIGTERM)
    weights = os.path.join(SOURCE, "tests/fixtures/jamba-dense")
    server = Server(LOCKSTEP, weights)
    code, said, errors = probe(server.url, "--model", weights, *(["--max-requests", "700"] if EVERY > 1 else []))
    check("a checkpoint in float32 has one order of bf16", code == 0 and said["expected"]["tokens"] > 0, code, errors)
    with tempfile.TemporaryDirectory() as directory:
        try_checkpoint(server, weights, directory)
    server.stop(signal.SIGTERM)
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES[::EVERY]:
            try_case(directory, *case)
        try_hangs(directory)
    print("passed")


main()
