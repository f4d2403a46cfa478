"""--state with a trainer that removes or writes over its directory of weights: the next start serves the version that was
served, or says why not. Usage: serve_state.py PROGRAM SOURCE_DIR"""

import json
import os
import shutil
import signal
import sys
import tempfile

from serving import Server, other_weights

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
ASKED = {"prompt": "The river runs", "max_tokens": 8, "seed": 7, "lockstep": True}


def served(s):
    choice, = s.post("/v1/completions", ASKED)["choices"]
    checksum = s.post("/weight_checker", {"action": "checksum"})["checksum"]
    return s.get("/weight_info")["version"], checksum, choice["lockstep"]["logprob_bits"]


def start(state):
    return Server(PROGRAM, TINY, "--max-length", "64", "--state", state)


def fails(state, word):
    try:
        s = start(state)
    except AssertionError as error:
        if word not in str(error):
            raise
    else:
        s.stop(signal.SIGKILL)
        raise AssertionError("it starts")


def goes_on(work, home):
    """With the trainer's directories in `work` and the state in `home`."""
    state, sent = os.path.join(home, "state.json"), os.path.join(work, "sent")
    s = start(state)
    for factor in (1.25, 1.5, 0.75):  # a directory that is removed behind each update
        s.post("/update_weights", {"weight_dir": other_weights(TINY, sent, factor)})
        shutil.rmtree(sent)
        want = served(s)
        s.stop(signal.SIGKILL)
        s = start(state)
        assert served(s) == want, (served(s), want)
        assert os.listdir(state + ".weights") == [str(want[0])], os.listdir(state + ".weights")
    # Weights alone, which take the served model's configuration.
    other_weights(TINY, sent, 2.0)
    os.remove(os.path.join(sent, "config.json"))
    s.post("/update_weights", {"weight_dir": sent})
    shutil.rmtree(sent)
    want = served(s)
    s.stop(signal.SIGKILL)
    s = start(state)
    assert served(s) == want
    s.stop()
    return state


def main():
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as home:
        state = goes_on(work, home)
        # One whose kept files were written over in place, through the trainer's own name for them.
        sent = os.path.join(work, "again")
        s = start(state)
        s.post("/update_weights", {"weight_dir": other_weights(TINY, sent, 1.1)})
        s.stop()
        with open(os.path.join(sent, "model.safetensors"), "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"\0\0")
        fails(state, "was written over since it was served")
        shutil.rmtree(state + ".weights")
        fails(state, "which is gone")
        with open(state) as file:
            assert set(json.load(file)) == {"version", "path", "kept", "files"}
    if os.path.isdir("/dev/shm") and os.stat("/dev/shm").st_dev != os.stat(tempfile.gettempdir()).st_dev:
        with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory(dir="/dev/shm") as home:
            goes_on(work, home)  # copies: no link leads to another file system
    print("what --state names is there at the next start")


main()
