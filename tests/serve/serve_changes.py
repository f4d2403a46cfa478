"""Weights that come as changes, written here from docs/reference/changes.md alone: the server serves the bits of the whole
weights, refuses what does not fit by name, and serves what it served then.

Usage: serve_changes.py PROGRAM SOURCE_DIR"""

import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile

from serving import Server

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
SANITIZED = os.environ.get("LS_SANITIZED") == "1"
SIZES = {"F32": 4, "BF16": 2, "U8": 1}
ASKED = {"prompt": [3, 1, 4], "max_tokens": 6, "seed": 7, "lockstep": True}


def read(directory):
    """{name: (dtype, shape, bytes)} of a model.safetensors."""
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]])
            for name, t in header.items()}


def write(path, tensors):
    """A safetensors file, largest elements first."""
    header, parts, at = {}, [], 0
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -SIZES[item[1][0]]):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


def write_whole(directory, tensors):
    """Weights alone: the configuration is that of the model that is served."""
    os.makedirs(directory)
    write(os.path.join(directory, "model.safetensors"), tensors)
    return directory


def write_changes(directory, base, result):
    os.makedirs(directory)
    listed, parts = {}, {}
    for name, (dtype, shape, after) in result.items():
        before, size = base[name][2], SIZES[dtype]
        listed[name] = {"dtype": dtype, "shape": shape, "base": fnv(before), "digest": fnv(after)}
        gaps, values, unchanged = bytearray(), bytearray(), 0
        for at in range(0, len(after), size):
            if before[at : at + size] == after[at : at + size]:
                unchanged += 1
                continue
            gaps += b"\xff" * (unchanged // 255) + bytes([unchanged % 255])
            values += after[at : at + size]
            unchanged = 0
        if gaps:
            parts["gaps." + name] = ("U8", [len(gaps)], bytes(gaps))
            parts["values." + name] = (dtype, [len(values) // size], bytes(values))
    write(os.path.join(directory, "changes.safetensors"), parts)
    with open(os.path.join(directory, "changes.json"), "w") as file:
        json.dump({"format": 1, "tensors": listed}, file)
    return directory


def step(tensors, seed):
    """The lowest bit of some two elements of a hundred is another one."""
    draw, out = random.Random(seed), {}
    for name, (dtype, shape, data) in tensors.items():
        data = bytearray(data)
        for at in range(0, len(data), SIZES[dtype]):
            if draw.random() < 0.02:
                data[at] ^= 1
        out[name] = (dtype, shape, bytes(data))
    return out


def served(s):
    choice, = s.post("/v1/completions", ASKED)["choices"]
    return s.post("/weight_checker", {"action": "checksum"})["checksum"], choice["lockstep"]["logprob_bits"]


def by_stages(s, directory):
    s.post("/start_weight_update", {})
    s.post("/update_weights", {"update_info": {"weight_dir": directory}})
    s.post("/finish_weight_update", {})


def serves_the_bits(model, work):
    """Three steps as changes, by every spelling, and the same three as whole weights to another server."""
    spellings = (lambda s, path: s.post("/update_weights", {"weight_dir": path}), by_stages,
                 lambda s, path: s.post("/update_weights_from_disk", {"model_path": path}))
    one, two = (Server(PROGRAM, model, "--max-length", "32", "--threads", "1") for _ in range(2))
    now = read(model)
    for i, update in enumerate(spellings):
        after = step(now, i)
        changes = write_changes(os.path.join(work, "changes"), now, after)
        whole = write_whole(os.path.join(work, "whole"), after)
        update(one, changes)
        shutil.rmtree(changes)  # nothing of the trainer's is needed any more
        two.post("/update_weights", {"weight_dir": whole})
        assert served(one) == served(two), i
        shutil.rmtree(whole)
        now = after
    two.stop()
    return one, now


def refuses(s, now, work):
    """What is served stays, bit for bit, and its version as well."""
    want, version = served(s), s.get("/weight_info")["version"]
    after = step(now, 9)
    name = max(now, key=lambda n: len(now[n][2]))
    cases = []
    stale = write_changes(os.path.join(work, "stale"), after, step(after, 10))
    cases.append((409, "begin with digest", stale))
    missing = write_changes(os.path.join(work, "missing"), now, after)
    parts = read_parts(missing)
    write(os.path.join(missing, "changes.safetensors"), {k: v for k, v in parts.items() if not k.endswith("." + name)})
    cases.append((400, "tensor '%s' is to change, and its changes are missing" % name, missing))
    other = write_changes(os.path.join(work, "other"), now, after)
    dtype, shape, data = parts["values." + name]
    write(os.path.join(other, "changes.safetensors"),
          dict(parts, **{"values." + name: (dtype, shape, bytes([data[0] ^ 2]) + data[1:])}))
    cases.append((400, "tensor '%s' has digest" % name, other))
    cut = write_changes(os.path.join(work, "cut"), now, after)
    os.truncate(os.path.join(cut, "changes.safetensors"), os.path.getsize(os.path.join(cut, "changes.safetensors")) - 1)
    cases.append((400, "changes.safetensors", cut))
    for status, word, directory in cases:
        s.refuses(status, word, "/update_weights", {"weight_dir": directory})
        s.post("/start_weight_update", {})
        s.refuses(status, word, "/update_weights", {"update_info": {"weight_dir": directory}})
        s.post("/finish_weight_update", {})
        assert s.get("/weight_info")["version"] == version
    assert served(s) == want


def read_parts(directory):
    shutil.copy(os.path.join(directory, "changes.safetensors"), os.path.join(directory, "model.safetensors"))
    parts = read(directory)
    os.remove(os.path.join(directory, "model.safetensors"))
    return parts


def lives_on(model, work):
    """--state keeps whole weights: what a killed server served is what the next changes begin with."""
    state = os.path.join(work, "state.json")
    start = lambda: Server(PROGRAM, model, "--max-length", "32", "--threads", "1", "--state", state)
    s, now = start(), read(model)
    for i in range(2):
        after = step(now, 20 + i)
        changes = write_changes(os.path.join(work, "kept"), now, after)
        s.post("/update_weights", {"weight_dir": changes})
        shutil.rmtree(changes)
        want, now = served(s), after
        assert os.listdir(os.environ["TMPDIR"]) == [], os.listdir(os.environ["TMPDIR"])
        s.stop(signal.SIGKILL)
        s = start()
        assert served(s) == want
    assert read(os.path.join(state + ".weights", "2")) == now
    s.stop()


def adapters_are_whole(model, work):
    """The base of changes is whole weights."""
    adapter = os.path.join(work, "adapter")
    os.makedirs(adapter)
    name = next(n for n in read(model) if n.endswith("q_proj.weight"))
    rows, columns = read(model)[name][1]
    module = "base_model.model." + name[: -len(".weight")]
    write(os.path.join(adapter, "adapter_model.safetensors"),
          {module + ".lora_A.weight": ("F32", [1, columns], bytes(4 * columns)),
           module + ".lora_B.weight": ("F32", [rows, 1], bytes(4 * rows))})
    with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": os.path.abspath(model), "r": 1,
                   "lora_alpha": 1, "target_modules": ["q_proj"], "lora_dropout": 0.0, "bias": "none"}, file)
    s = Server(PROGRAM, model, "--max-length", "32", "--threads", "1")
    s.post("/update_weights", {"weight_dir": adapter})
    changes = write_changes(os.path.join(work, "of-adapter"), read(model), step(read(model), 30))
    s.refuses(409, "an adapter is served", "/update_weights", {"weight_dir": changes})
    s.stop()


def main():
    fixtures = os.path.join(SOURCE, "tests", "fixtures")
    models = [os.path.join(fixtures, name) for name in ("llama-small", "mamba-odd")]  # BF16 and F32
    for model in models[: 1 if SANITIZED else 2]:
        with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as own:
            os.environ["TMPDIR"] = own  # of the servers that begin from here on
            s, now = serves_the_bits(model, work)
            refuses(s, now, work)
            assert len(os.listdir(own)) == 1, os.listdir(own)  # the weights that are served
            s.stop()
            assert os.listdir(own) == []
            if model == models[0]:
                lives_on(model, work)
                adapters_are_whole(model, work)
    print("what is served after changes has the bits of the whole weights")


main()
