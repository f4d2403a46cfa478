"""A server whose model gives no log-probabilities (NaN) answers with an error that names the token, never with null, and
goes on. Usage: serve_nan.py PROGRAM SOURCE_DIR"""

import os
import sys
import tempfile

from serving import Server, other_weights

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
WORD = "there is no log-probability"


def fails(s, path, body):
    status, _, reply = s.request("POST", path, body)
    said = reply["error"]["message"] if isinstance(reply, dict) and "error" in reply else repr(reply)
    if status < 400 or WORD not in said or "token " not in said:
        raise AssertionError("%s %s: %d, %s" % (path, body, status, said))


def main():
    with tempfile.TemporaryDirectory() as work:
        s = Server(PROGRAM, TINY, "--max-length", "64")
        cold = {"prompt": "The river runs", "max_tokens": 3, "temperature": 1e-6, "seed": 1}
        assert s.post("/v1/completions", dict(cold, logprobs=1))["choices"]  # the model's own are there
        fails(s, "/v1/completions", dict(cold, lockstep={"distributions": True}))
        s.post("/update_weights", {"weight_dir": other_weights(TINY, os.path.join(work, "huge"), -7.4e20)})
        fails(s, "/v1/completions", {"prompt": "The river runs", "max_tokens": 3, "logprobs": 1})
        fails(s, "/v1/completions", {"prompt": "The river runs", "max_tokens": 1, "prompt_logprobs": 0})
        fails(s, "/generate", {"text": "12+7=", "sampling_params": {"max_new_tokens": 3}, "return_logprob": True})
        fails(s, "/v1/score", {"sequences": [[1, 2, 3, 4]]})
        fails(s, "/lockstep/check", {})
        s.post("/update_weights", {"weight_dir": TINY})
        assert s.post("/v1/completions", {"prompt": "The river runs", "max_tokens": 3, "logprobs": 1})["choices"]
        s.is_idle()
        s.stop()
        s = Server(PROGRAM, TINY, "--max-length", "64", "--logprobs", "processed")
        fails(s, "/v1/completions", dict(cold, logprobs=1))
        s.is_idle()
        s.stop()
    print("every token without a log-probability is an error")


main()
