#!/usr/bin/env python3
"""Usage: bench/overlap.py PROGRAM [--threads N] [--steps N] [--lags N,..] [--median N] [--longest N] [--judge LOW:HIGH]
                            [--prompts N] [--samples N] [--hidden N] [--microbatch N] [--draw-threads N]
                            [--set KEY=VALUE]

What `lag` saves on a CPU: runs of policy gradients of a model of random weights, one for each lag. The model has no end
of sequence. Each line of the data bounds its completions (data_max_tokens): bounds are log-normal with this median, and
the longest percent of them is cut to --longest. A judge thinks about each episode for a time between LOW and HIGH
seconds, uniform by its logarithm, about all at once; 0:0 answers at once. Lengths and times are the same in every run.

It wants a machine without other work. Prints for each run, of its steps behind the first two and before the last two:
seconds a step, the parts of that, how much of the processors' time no thread of the run used, and for how much of the
time at least neither side had work: what the waits of trainer and drawer together are longer than a step, and no more
than the trainer waited. The full setting is --median 256 --longest 8192 --microbatch 16.
"""
import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tiny-text")
LAST_PERCENT = statistics.NormalDist().inv_cdf(0.99)
EDGE = 2  # steps at either end of a run, which are not as those between

JUDGE = r"""
import hashlib, json, sys, threading, time
low, high = float(sys.argv[1]), float(sys.argv[2])
lock = threading.Lock()
def judge(item):
    words = hashlib.sha256(item["id"].encode()).digest()
    share = int.from_bytes(words[:4], "little") / 2.0 ** 32
    if high > 0:
        time.sleep(low * (high / low) ** share)
    with lock:
        print(json.dumps({"id": item["id"], "reward": words[8] % 2}), flush=True)
for line in sys.stdin:
    threading.Thread(target=judge, args=(json.loads(line),)).start()
"""


def make_model(program, directory, hidden):
    config = {"architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": hidden,
              "intermediate_size": 2 * hidden, "num_hidden_layers": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
              "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 1, "num_experts_per_tok": 1,
              "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
              "mamba_expand": 2, "mamba_dt_rank": 16, "mamba_conv_bias": True, "mamba_proj_bias": False,
              "vocab_size": 512, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
              "max_position_embeddings": 1 << 20, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
              "dtype": "float32"}
    path = directory + ".json"
    with open(path, "w") as file:
        json.dump(config, file)
    subprocess.run([program, "init", "--config", path, "--tokenizer", TOKENIZER, "--out", directory], check=True,
                   stdout=subprocess.DEVNULL)


def write_data(path, lines, median, longest):
    draws = random.Random(1)
    deviation = math.log(longest / median) / LAST_PERCENT
    with open(path, "w") as file:
        for i in range(lines):
            tokens = min(longest, max(1, round(median * math.exp(deviation * draws.gauss(0, 1)))))
            file.write(json.dumps({"id": i, "prompt": "problem %d: " % i, "answer": "", "tokens": tokens}) + "\n")


def cpu_seconds(pid):
    """Of the process's own threads so far; a judge is another process."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_lines(path):
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        return file.read().count(b"\n")


def run(program, scratch, name, settings, steps):
    """The digest, the records of the steps, and (time, the process's seconds) behind each step."""
    directory = os.path.join(scratch, name)
    metrics = os.path.join(directory, "metrics.jsonl")
    words = [program, "train", "grpo"]
    for setting in settings + ["run=" + directory, "steps=%d" % steps]:
        words += ["--set", setting]
    marks = []
    with open(os.path.join(scratch, "said"), "w+") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said)
        while process.poll() is None:
            if count_lines(metrics) > len(marks):
                marks.append((time.monotonic(), cpu_seconds(process.pid)))
            time.sleep(0.005)
        said.seek(0)
        text = said.read()
    if process.returncode != 0:
        sys.exit("overlap: %s: %s" % (name, text[-900:]))
    with open(metrics) as file:
        rows = [json.loads(line) for line in file]
    return text.rsplit("digest ", 1)[1].strip(), rows, marks


def mean(rows, name):
    return sum(row.get("seconds/" + name, 0) for row in rows) / len(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--draw-threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--lags", default="0,1,2")
    parser.add_argument("--median", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--judge", default="0.5:5")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--microbatch", type=int, default=64)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    low, high = options.judge.split(":")
    if options.steps < 2 * EDGE + 1:
        parser.error("--steps: %d; %d are left out" % (options.steps, 2 * EDGE))
    scratch = tempfile.mkdtemp()
    try:
        judge, model, data = (os.path.join(scratch, name) for name in ("judge.py", "model", "data.jsonl"))
        with open(judge, "w") as file:
            file.write(JUDGE)
        make_model(options.program, model, options.hidden)
        write_data(data, options.prompts * options.steps, options.median, options.longest)
        common = ["device=cpu", "model=" + model, "data=" + data, "data_max_tokens=tokens", "held_out=0", "stop=",
                  "prompts=%d" % options.prompts, "samples=%d" % options.samples, "max_tokens=%d" % options.longest,
                  "length=%d" % (options.longest + 64), "rate=1e-5", "microbatch=%d" % options.microbatch,
                  "save_every=0", "reward_concurrency=4096", "threads=%d" % options.threads,
                  "reward_command=%s %s %s %s" % (sys.executable, judge, low, high)] + options.set
        base = None
        for lag in (int(word) for word in options.lags.split(",")):
            settings = common + ["lag=%d" % lag]
            if lag > 0 and options.draw_threads > 0:
                settings.append("draw_threads=%d" % options.draw_threads)
            digest, rows, marks = run(options.program, scratch, "lag-%d" % lag, settings, options.steps)
            inner = rows[EDGE:-EDGE]
            (begin, busy), (end, busy_then) = marks[EDGE - 1], marks[-EDGE - 1]
            step = (end - begin) / len(inner)
            idle = 1 - (busy_then - busy) / ((end - begin) * options.threads)
            wait = mean(inner, "wait")
            none = min(wait, max(0, wait + mean(inner, "idle") - step))
            base = base or step
            print("lag %d: %.3f s a step, %.2f times the first; %.1f %% of %d processors idle, %.1f %% of the time "
                  "without work; draws %.2f, check %.2f, judge %.2f, update %.2f, trainer waits %.2f, drawer waits "
                  "%.2f; %.0f tokens an episode; digest %s" %
                  (lag, step, base / step, 100 * idle, options.threads, 100 * none / step, mean(inner, "rollout"),
                   mean(inner, "check"), mean(inner, "reward"), mean(inner, "update"), mean(inner, "wait"),
                   mean(inner, "idle"), sum(row["length/mean"] for row in inner) / len(inner), digest), flush=True)
    finally:
        shutil.rmtree(scratch)


main()
