"""`lockstep train grpo` with rollouts from `lockstep serve`: the digest of the run is that of one process, whether the
run is stopped and resumed, the server dies, or two servers share the work.

Usage: serve_grpo.py PROGRAM SOURCE_DIR"""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serving import Server, other_weights

program, source = sys.argv[1:3]
MODEL = os.path.join(source, "models", "tiny-sort")
SANITIZED = os.environ.get("LS_SANITIZED") == "1"
STEPS = 2 if SANITIZED else 4
SMALL = ["model=" + MODEL, "task=sort-digits", "task_options=count=4,reward=ratio", "steps=%d" % STEPS, "prompts=4", "samples=4",
         "max_tokens=8", "length=40", "rate=3e-4", "minibatches=2", "epochs=2", "eval_every=2", "eval_n=4", "leaf=8",
         "threads=1"]


def train(*settings, code=(0,), command="grpo", run=None):
    """What a run says, and how it ended."""
    words = [program, "train", command] + ([run] if command == "resume" else [])
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    said = done.stdout.decode()
    assert done.returncode in code, "exit code %d, not one of %s: %s" % (done.returncode, code, said)
    return said


def digest(said):
    return re.search(r"^digest ([0-9a-f]{16})$", said, re.M).group(1)


def same_digest(folder):
    """Raw log-probabilities; evaluations by the server as well."""
    alone = train(*SMALL, "run=" + os.path.join(folder, "alone"))
    server = Server(program, MODEL, "--max-length", "40", "--batch", "4", "--threads", "1")
    remote = train(*SMALL, "run=" + os.path.join(folder, "remote"), "rollout_url=" + server.url)
    assert digest(remote) == digest(alone), (alone, remote)
    held = [line.split("held-out")[1] for line in alone.splitlines() if "held-out" in line]
    assert held and held == [line.split("held-out")[1] for line in remote.splitlines() if "held-out" in line]
    version = server.get("/weight_info")["version"]
    assert version == STEPS * 4, version  # an update for each minibatch of each epoch
    left = os.listdir(os.path.join(folder, "remote", "rollout"))
    assert left == ["weights-%08d" % version], left  # what is served, and nothing else
    return server, digest(alone)


def two_servers(folder, first, wanted):
    """A second server, whose versions are others, and a run that is stopped in between."""
    second = Server(program, MODEL, "--max-length", "64", "--batch", "2", "--threads", "1")
    run = os.path.join(folder, "shared")
    train(*SMALL, "run=" + run, "rollout_url=%s,%s" % (first.url, second.url + "/"), "steps=%d" % (STEPS // 2))
    said = train("steps=%d" % STEPS, command="resume", run=run)
    assert digest(said) == wanted, said
    assert first.get("/weight_info")["version"] > second.get("/weight_info")["version"]
    second.stop()


def dies(folder):
    """A server that is killed in the middle ends the run with one sentence; another one lets it go on."""
    server = Server(program, MODEL, "--max-length", "40", "--threads", "1")
    run = os.path.join(folder, "dies")
    killer = threading.Thread(target=kill_when, args=(server, run))
    killer.start()
    said = train(*SMALL, "run=" + run, "rollout_url=" + server.url, "rollout_timeout=0.5", "save_every=1",
                 "rollout_push=changed", "steps=100000", code=(2,))
    killer.join()
    # Also in the middle of an evaluation, which the sentence then says.
    assert re.search(r"step \d+: (evaluation: )?http://[0-9.:]+/\S+: .*, \d+ tr(y|ies)$", said, re.M), said
    updates = max(int(name[5:]) for name in os.listdir(os.path.join(run, "checkpoints")) if name.startswith("step-"))
    steps = "steps=%d" % (updates // 4 + 1)
    fresh = Server(program, MODEL, "--max-length", "40", "--threads", "1")
    said = train("rollout_url=" + fresh.url, "rollout_timeout=60", steps, command="resume", run=run)
    fresh.stop()
    assert digest(said) == digest(train(*SMALL, "run=" + os.path.join(folder, "lives"), steps, "eval_every=0")), said


def lags(folder, server):
    """A server that draws with the weights of a step before, while the trainer trains; over a run that ends and goes on."""
    ahead = ["steps=3", "minibatches=1", "epochs=1", "lag=1", "rate=1e-6"]
    alone = train(*SMALL, *ahead, "run=" + os.path.join(folder, "ahead"))
    run = os.path.join(folder, "far-ahead")
    train(*SMALL, *ahead, "run=" + run, "rollout_url=" + server.url, "rollout_push=changed", "steps=2")
    said = train("steps=3", command="resume", run=run)
    assert digest(said) == digest(alone), (alone, said)
    with open(os.path.join(run, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file][-1:]
    assert rows[0]["lag/steps"] == 1 and rows[0]["lag/checked"] > 0 and rows[0]["mismatch/abs_max"] == 0, rows


def pushes_changes(folder):
    """Servers that get the elements that changed: the digest of whole weights, over a run that ends and goes on and a server
    that has other weights in the middle."""
    slow = ["rate=1e-6", "eval_every=0"]
    wanted = digest(train(*SMALL, *slow, "run=" + os.path.join(folder, "slow")))
    servers = [Server(program, MODEL, "--max-length", "40", "--batch", "4", "--threads", "1") for _ in range(2)]
    others, sent = other_weights(MODEL, os.path.join(folder, "others"), 1.5, files=("config.json",)), []

    def lose_base(path):
        if path == "/update_weights" and len(sent) == 1:  # somebody else changes them
            servers[1].post("/update_weights", {"weight_dir": others})

    def note(path, body, status, text):
        if path == "/update_weights" and status == 200:
            sent.append(os.path.basename(json.loads(body)["weight_dir"]))
        return status, text

    between = Between(servers[1], note, lose_base)
    run = os.path.join(folder, "changed")
    said = train(*SMALL, *slow, "run=" + run, "rollout_url=%s,%s" % (servers[0].url, between.url), "rollout_push=changed",
                 "steps=%d" % (STEPS // 2))
    again = train("steps=%d" % STEPS, command="resume", run=run)
    assert digest(again) == wanted, again
    updates = [4 * i for i in range(STEPS)]
    assert os.listdir(os.path.join(run, "rollout")) == ["%s-%08d" % ("weights" if STEPS == 2 else "changes", updates[-1])]
    kinds = {"weights": [], "changes": []}
    for name in sent:
        kinds[name[:7]].append(int(name[8:]))
    # Whole at the beginning, where the run goes on, and where the server has other weights; else what changed.
    whole = sorted({0, 4 * (STEPS // 2)} | ({4} if STEPS > 2 else set()))
    assert kinds["weights"] == whole and kinds["changes"] == [u for u in updates if u not in whole], sent
    if STEPS > 2:
        assert re.search("begin with digest .*; it gets whole weights", said), said
        with open(os.path.join(run, "metrics.jsonl")) as file:
            pushed = [json.loads(line)["rollout/push_bytes"] for line in file]
        assert pushed[0] == pushed[2] > 400000 and 0 < pushed[3] < pushed[0] / 4, pushed
        assert pushed[0] < pushed[1] < 1.25 * pushed[0], pushed  # both kinds
    between.stop()
    for server in servers:
        server.stop()


def kill_when(server, run):
    """Once the run has a checkpoint."""
    for _ in range(3000):
        folder = os.path.join(run, "checkpoints")
        if os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder)):
            break
        time.sleep(0.01)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def truncated(folder):
    """Processed log-probabilities of what top-k left, at a temperature, also of older weights; a key."""
    extra = ["temperature=0.7", "top_k=6", "top_p=0.9", "eval_every=0"]
    key = os.path.join(folder, "key")
    with open(key, "w") as file:
        file.write("secret\n")
    server = Server(program, MODEL, "--max-length", "40", "--logprobs", "processed", "--api-key-file", key)
    for lag in "lag=0", "lag=1":
        alone = train(*SMALL, *extra, lag, "run=" + os.path.join(folder, "truncated-" + lag))
        said = train(*SMALL, *extra, lag, "run=" + os.path.join(folder, "far-" + lag), "rollout_url=" + server.url,
                     "rollout_key_file=" + key)
        assert digest(said) == digest(alone), (alone, said)
    server.stop()


def several_turns(folder):
    """Episodes whose turns are further requests, each with what the environment said."""
    model = os.path.join(source, "models", "tiny-text")
    own = ["model=" + model, "task=guess-number", "task_options=", "steps=2", "eval_every=0", "length=200", "minibatches=1",
           "epochs=1"]
    alone = train(*SMALL, *own, "run=" + os.path.join(folder, "turns"))
    server = Server(program, model, "--max-length", "200")
    said = train(*SMALL, *own, "run=" + os.path.join(folder, "far-turns"), "rollout_url=" + server.url)
    assert digest(said) == digest(alone), (alone, said)
    server.stop()


def refuses(folder, server):
    """Servers that would not give what the trainer learns from, and settings that mean nothing."""
    run = "run=" + os.path.join(folder, "refused")
    at = "rollout_url=" + server.url
    for word, *settings in (
            ("start it with --logprobs processed", at, "temperature=0.5"),
            ("start it with --max-length 60", at, "length=60"),
            ("the server computes in exact/2/f32, the trainer in exact/2/bf16", at, "dtype=bf16"),
            ("does not begin with http://", "rollout_url=ftp://x"),
            ("rollout_key_file: without rollout_url", "rollout_key_file=x"),
            ("rollout_push: without rollout_url", "rollout_push=changed"),
            ("a server takes whole weights", at, "lora_rank=2"),
            ("a server takes seeds below 2^63", at, "seed=9223372036854775808"),
            ("/server_info: the server answered with status 404", at + "/nothing"),
            ("rollout_url: http://127.0.0.1:9/server_info", "rollout_url=http://127.0.0.1:9", "rollout_timeout=0.3"))[:: 4 if SANITIZED else 1]:
        said = train(*SMALL, run, *settings, code=(2,))
        assert word in said, (settings, said)
    if not SANITIZED:
        plain = Server(program, os.path.join(source, "models", "tiny-text"), "--max-length", "40")
        said = train(*SMALL, run + "-other", "rollout_url=" + plain.url, code=(2,))
        assert "/update_weights: the server answered with status 400: " in said, said
        plain.stop()


class Between:
    """A server in front of the server, that may do something to every answer."""

    def __init__(self, server, change, before=lambda path: None):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: apart, the second waits 40 ms for the first to be confirmed

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                before(self.path)
                link = http.client.HTTPConnection(server.host, server.port, timeout=60)
                link.request(self.command, self.path, body)
                reply = link.getresponse()
                status, text = reply.status, reply.read()
                link.close()
                status, text = change(self.path, body, status, text)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = pass_on

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # a trainer that ends leaves its requests
        self.url = "http://127.0.0.1:%d" % self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()


def of_rollouts(change):
    """What is done to the answers of rollouts alone."""
    return lambda path, body, status, text: change(status, text) if path == "/inference/v1/generate" else (status, text)


def edit(change):
    """Lets change() edit the choice of a rollout."""
    def edited(status, text):
        reply = json.loads(text)
        change(reply["choices"][0], reply["choices"][0]["lockstep"])
        return status, json.dumps(reply).encode()
    return edited


def false_answers(folder, server, wanted):
    """Answers that are not what was asked for end the run, one bit stops it at the gate, failures are asked again."""
    def another_bit(choice, own):
        if own["prompt"] == 2:
            own["logprob_bits"][-1] = "%08x" % (int(own["logprob_bits"][-1], 16) ^ 1)

    def set_value(key, value):
        return edit(lambda choice, own: own.__setitem__(key, value))

    def set_choice(key, value):
        return edit(lambda choice, own: choice.__setitem__(key, value))

    for i, (code, word, change) in enumerate((
            (3, "step 1: rollout and trainer differ in", edit(another_bit)),
            (2, "started anew", edit(lambda choice, own: own["weights"].__setitem__(0, 7))),
            (2, "lockstep.seed: ", set_value("seed", 1 << 40)),
            (2, "lockstep.sample: 9, not ", set_value("sample", 9)),
            (2, "lockstep.numerics: mma16/1/f32, not exact/2/f32", set_value("numerics", "mma16/1/f32")),
            (2, "is not the bits of a float", edit(lambda choice, own: own["logprob_bits"].__setitem__(0, "8f"))),
            (2, "is no log-probability", edit(lambda choice, own: own["logprob_bits"].__setitem__(0, "3f800000"))),
            (2, "the completion ended by abort", set_choice("finish_reason", "abort")),
            (2, "where 1 to 8 were asked for", set_choice("token_ids", [1] * 9)),
            (2, "answered with status 400", lambda status, text: (400, b"no")))[:: 5 if SANITIZED else 1]):
        between = Between(server, of_rollouts(change))
        said = train(*SMALL, "run=%s/false-%d" % (folder, i), "rollout_url=" + between.url, "eval_every=0",
                     code=(code,))
        assert word in said, (word, said)
        between.stop()
    if SANITIZED:
        return
    count = []

    def now_and_then(status, text):
        count.append(0)
        return (503, b"") if len(count) % 16 == 1 else (status, text)

    between = Between(server, of_rollouts(now_and_then))
    said = train(*SMALL, "run=" + os.path.join(folder, "again"), "rollout_url=" + between.url)
    assert digest(said) == wanted and "it is asked again" in said, said
    between.stop()


def two_ranks(folder, server, wanted):
    """Two processes of one run; the first of them sends the weights."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "address=127.0.0.1:%d" % probe.getsockname()[1]
    ranks = ["run=" + os.path.join(folder, "ranks"), "rollout_url=" + server.url, "rollout_push=changed", address,
             "ranks=2", "timeout=60"]
    other = threading.Thread(target=train, args=(*SMALL, *ranks, "rank=1"))
    other.start()
    said = train(*SMALL, *ranks, "rank=0")
    other.join()
    assert digest(said) == wanted, said


with tempfile.TemporaryDirectory() as scratch:
    first_server, run_digest = same_digest(scratch)
    two_servers(scratch, first_server, run_digest)
    if not SANITIZED:
        two_ranks(scratch, first_server, run_digest)
    lags(scratch, first_server)
    pushes_changes(scratch)
    refuses(scratch, first_server)
    false_answers(scratch, first_server, run_digest)
    first_server.is_idle()
    first_server.stop()
    dies(scratch)
    truncated(scratch)
    if not SANITIZED:
        several_turns(scratch)
    print("ok: digest %s" % run_digest)
