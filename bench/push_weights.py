#!/usr/bin/env python3
"""Bytes and seconds of a push of weights to a server, whole and as changes (docs/reference/changes.md).

Usage: bench/push_weights.py PROGRAM LIBRARY MODEL SHARE
MODEL has one model.safetensors in BF16. About SHARE of its elements, 0.02 for instance, get another lowest bit in each of
three steps. Nothing else should run; one line for each push. Needs numpy."""

import json
import os
import shutil
import struct
import sys
import tempfile
import time

import numpy as np

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(SOURCE, "python"), os.path.join(SOURCE, "tests", "serve")]
PROGRAM, os.environ["LOCKSTEP_LIBRARY"], MODEL, SHARE = sys.argv[1], os.path.abspath(sys.argv[2]), *sys.argv[3:5]
import lockstep  # noqa: E402
from serving import Server  # noqa: E402


def timed(call, *args):
    begin = time.time()
    out = call(*args)
    return time.time() - begin, out


def other(directory, to, seed):
    """The weights after a step; written as a trainer writes them, to the disk. Returns the seconds of that."""
    os.makedirs(to)
    for name in os.listdir(directory):
        if not name.endswith(".safetensors"):
            shutil.copy(os.path.join(directory, name), to)
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        data = np.frombuffer(bytearray(file.read()), np.uint8)
    n = 8 + struct.unpack("<Q", data[:8].tobytes())[0]
    assert {t["dtype"] for name, t in json.loads(data[8:n].tobytes()).items() if name != "__metadata__"} == {"BF16"}
    values = data[n:].view(np.uint16)
    values ^= (np.random.default_rng(seed).random(len(values), np.float32) < float(SHARE)).astype(np.uint16)

    def write():
        with open(os.path.join(to, "model.safetensors"), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    return timed(write)[0]


def size(directory):
    return sum(entry.stat().st_size for entry in os.scandir(directory))


def main():
    with tempfile.TemporaryDirectory() as work:
        server = Server(PROGRAM, MODEL, "--max-length", "64", "--batch", "1")
        before = os.path.abspath(MODEL)
        for step in range(3):
            after, changes = os.path.join(work, "weights-%d" % step), os.path.join(work, "changes-%d" % step)
            write = other(before, after, step)
            make, _ = timed(lockstep.write_changes, before, after, changes)
            load, _ = timed(server.post, "/update_weights", {"weight_dir": changes})
            print("changes: %12d bytes  written in %.2f s  served in %.2f s" % (size(changes), make, load))
            if step == 2:
                checksum = server.post("/weight_checker", {"action": "checksum"})["checksum"]
                load, _ = timed(server.post, "/update_weights", {"weight_dir": after})
                print("whole:   %12d bytes  written in %.2f s  served in %.2f s" % (size(after), write, load))
                assert checksum == server.post("/weight_checker", {"action": "checksum"})["checksum"]
            before = after
        server.stop()


main()
