"""A server under test, and small clients for it: standard library only."""

import atexit
import http.client
import json
import os
import select
import shutil
import signal
import socket
import string
import struct
import subprocess
import tempfile
import threading
import time
import urllib.parse


class Server:
    """The program `lockstep serve` on a free port."""

    def __init__(self, program, model, *options, name="tiny"):
        self.model = model
        self.log = tempfile.TemporaryFile()
        command = [program, "serve", "--model", model, "--port", "0", "--served-model-name", name, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        atexit.register(self.process.kill)  # also where a test fails
        if not select.select([self.process.stdout], [], [], 60)[0]:
            self.process.kill()
            raise AssertionError("the server says nothing for a minute")
        line = self.process.stdout.readline().decode()
        if "listening on" not in line:
            self.process.wait()
            raise AssertionError("no server: " + self.said())
        self.url = line.split()[-1]
        parts = urllib.parse.urlparse(self.url)
        self.host, self.port = parts.hostname, parts.port

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self, how=signal.SIGTERM, timeout=60):
        """Ends it; after SIGTERM everything must have been in order."""
        self.process.send_signal(how)
        code = self.process.wait(timeout)
        if how == signal.SIGTERM and code != 0:
            raise AssertionError("exit code %d: %s" % (code, self.said()))
        self.process.stdout.close()
        return code

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers, and what the reply's JSON says (text where it is none)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        try:
            return reply.status, reply.headers, json.loads(text)
        except ValueError:
            return reply.status, reply.headers, text.decode()

    def post(self, path, body, **more):
        status, _, reply = self.request("POST", path, body, **more)
        if status != 200:
            raise AssertionError("%s: %d: %s" % (path, status, reply))
        return reply

    def get(self, path):
        status, _, reply = self.request("GET", path)
        if status != 200:
            raise AssertionError("%s: %d: %s" % (path, status, reply))
        return reply

    def refuses(self, status, word, path, body, method="POST", headers=None):
        """The request is refused with this status, and its sentence has the word."""
        found, reply_headers, reply = self.request(method, path, body, headers)
        said = reply["error"]["message"] if isinstance(reply, dict) and "error" in reply else repr(reply)
        if found != status or word not in said:
            raise AssertionError("%s %s: %d, not %d, %s" % (path, body, found, status, said))
        return reply_headers

    def stream(self, path, body):
        """The events of a stream, as they come."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("POST", path, json.dumps(dict(body, stream=True)).encode())
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        done = False
        for line in reply:
            line = line.decode().rstrip("\n")
            if line == "":
                continue
            assert line.startswith("data: ") and not done, line
            if line == "data: [DONE]":
                done = True
            else:
                yield json.loads(line[6:])
        assert done
        connection.close()

    def metrics(self, *names):
        """Values of one moment: between two requests what waits may begin to run."""
        found = dict(line.split("{", 1) for line in reversed(self.get("/metrics").splitlines()) if "{" in line)
        missing = [name for name in names if name not in found]
        assert not missing, "no measures %s" % missing
        return [float(found[name].rsplit(" ", 1)[1]) for name in names]

    def metric(self, name):
        return self.metrics(name)[0]

    def is_idle(self, seconds=20):
        """Nothing runs, nothing waits, and without the prefix cache every slot and page is back."""
        until = time.time() + seconds
        while time.time() < until:
            self.post("/reset_prefix_cache", {})
            if all(self.metric("lockstep:" + what) == 0
                   for what in ("requests_running", "requests_waiting", "slots_used", "pages_used")):
                return
            time.sleep(0.02)
        raise AssertionError("not idle: " + self.get("/metrics"))

    def raw(self, data, wait=5.0):
        """What comes back for these bytes until the server closes or is silent for so long."""
        with socket.create_connection((self.host, self.port), timeout=wait) as s:
            s.sendall(data)
            got = b""
            try:
                while True:
                    part = s.recv(65536)
                    if not part:
                        break
                    got += part
            except (socket.timeout, ConnectionError):
                pass
            return got


def told_choices(events):
    """What a stream of /v1/completions told in all, by choice."""
    told = {}
    for event in events:
        for choice in event["choices"]:
            t = told.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": [], "bits": [], "finish": None})
            t["text"] += choice["text"]
            t["ids"] += choice.get("token_ids", [])
            if choice.get("logprobs"):
                t["logprobs"] += choice["logprobs"]["token_logprobs"]
            if "lockstep" in choice:
                t["bits"] += choice["lockstep"]["logprob_bits"]
            t["finish"] = choice["finish_reason"] or t["finish"]
    return told


def generate(program, model, prompts, *options):
    """Records of `lockstep generate`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for i, prompt in enumerate(prompts):
            file.write(json.dumps(dict(prompt, id="p%d" % i)) + "\n")
        file.flush()
        out = subprocess.run([program, "generate", "--model", model, "--prompts", file.name, *options],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return [json.loads(line) for line in out.splitlines()]


def score(program, model, sequences):
    """Log-probabilities of whole sequences of token ids by `lockstep score`, the training forward in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for i, ids in enumerate(sequences):
            file.write(json.dumps({"id": str(i), "token_ids": ids}) + "\n")
        file.flush()
        out = subprocess.run([program, "score", "--model", model, "--tokens", file.name], check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return [json.loads(line)["logprobs"] for line in out.splitlines()]


def score_spans(program, model, record, weights):
    """logprob_bits of a record's tokens, each by the weights of the version that meta.weights says; weights: {version: directory}."""
    named = [word for version, path in weights.items() for word in ("--weights", "%d=%s" % (version, path))]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        out = subprocess.run([program, "score", "--model", model, "--rollouts", file.name, *named], check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    scored = json.loads(out)
    assert scored["meta"]["weights"] == record["meta"]["weights"], scored["meta"]
    return scored["logprob_bits"]


def other_weights(model, directory, factor, files=("config.json", "tokenizer.json")):
    """Writes `directory`: the model with its final norm multiplied. Appears under its name when it is whole."""
    made = directory + ".new"
    os.makedirs(made)
    for name in files:
        shutil.copy(os.path.join(model, name), made)
    with open(os.path.join(model, "model.safetensors"), "rb") as file:
        data = bytearray(file.read())
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    entry = header["model.final_layernorm.weight"]
    first, last = (8 + n + at for at in entry["data_offsets"])
    for at in range(first, last, 2 if entry["dtype"] == "BF16" else 4):
        if entry["dtype"] == "BF16":
            value = struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] * factor
            data[at : at + 2] = struct.pack("<f", value)[2:]
        else:
            data[at : at + 4] = struct.pack("<f", struct.unpack("<f", data[at : at + 4])[0] * factor)
    with open(os.path.join(made, "model.safetensors"), "wb") as file:
        file.write(data)
    os.rename(made, directory)
    return directory


def write_speaker(program, model, folder, pieces, tools, template, special=()):
    """A model directory and the body of a chat for which the model says just these pieces, a token each: its draws are what
    they are, and the vocabulary is written so that the ids that it draws have these texts. Its letters are those below 128."""
    os.makedirs(folder)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(model, name), folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
        file.write(template)
    letters = string.printable[:95] + "\n"
    vocab = {c: 3 + i for i, c in enumerate(letters)}

    def write(names):
        taken = set(names.values())
        for i in range(512):
            if i not in taken:
                names["\ue000%d" % i] = i
        added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                  "special": True} for text, i in sorted(names.items(), key=lambda x: x[1]) if text in special]
        made = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": names, "merges": []}
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                       "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": made}, file)

    write(dict(vocab))
    messages = [{"role": "user", "content": "go"}]
    records = generate(program, folder, [{"messages": messages, "tools": tools}], "--samples", "120", "--temperature", "100000",
                       "--max-tokens", str(len(pieces)), "--batch", "64")
    record = next(r for r in records if len(set(r["completion_ids"])) == len(pieces) and min(r["completion_ids"]) >= 128)
    write(dict(vocab, **dict(zip(pieces, record["completion_ids"]))))
    return {"messages": messages, "tools": tools, "seed": 0, "temperature": 100000, "max_tokens": len(pieces),
            "lockstep": {"sample": record["sample"]}, "return_token_ids": True}


def side_by_side(*calls):
    """Runs the calls at once; their results in order, or the first error."""
    results, errors = [None] * len(calls), []

    def run(i, call):
        try:
            results[i] = call()
        except BaseException as error:  # told below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i, call)) for i, call in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results
