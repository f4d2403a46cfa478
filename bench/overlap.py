#!/usr/bin/env python3
"""Usage: bench/overlap.py PROGRAM [--threads N] [--steps N] [--hidden N] [--samples N] [--tokens N] [--judge SECONDS]

What `lag` saves on a CPU: a run of policy gradients of a model of random weights that takes turns, and with lag 1 and 2,
beside each other. Lengths are those of such a model, geometric and cut off at --tokens; a judge thinks about each
episode, log-normal around --judge seconds, between a fifth of it and twice as long, all at once. Prints seconds a step
behind the first two, how much of them the trainer waited, and the digests, which must be those of the run with other
threads.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tiny-text")

JUDGE = r"""
import hashlib, json, math, sys, threading, time
middle = float(sys.argv[1])
lock = threading.Lock()
def judge(item):
    words = hashlib.sha256(item["id"].encode()).digest()
    u, v = (int.from_bytes(words[i:i + 4], "little") + 1 for i in (0, 4))
    normal = math.sqrt(-2 * math.log(u / 2.0 ** 32)) * math.cos(2 * math.pi * v / 2.0 ** 32)
    time.sleep(min(max(middle * math.exp(0.6 * normal), middle / 5), 2 * middle))
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
              "max_position_embeddings": 1 << 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
              "dtype": "float32"}
    path = directory + ".json"
    with open(path, "w") as file:
        json.dump(config, file)
    subprocess.run([program, "init", "--config", path, "--tokenizer", TOKENIZER, "--out", directory], check=True,
                   stdout=subprocess.DEVNULL)


def run(program, model, scratch, name, settings, steps):
    directory = os.path.join(scratch, name)
    words = [program, "train", "grpo", "--set", "device=cpu", "--set", "model=" + model, "--set", "run=" + directory, "--set", "steps=%d" % steps,
             "--set", "save_every=0"]
    for setting in settings:
        words += ["--set", setting]
    before = os.times()
    done = subprocess.run(words, capture_output=True, text=True)
    after = os.times()
    if done.returncode != 0:
        sys.exit("overlap: %s: %s" % (name, done.stderr[-600:] + done.stdout[-300:]))
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return (done.stdout + done.stderr).rsplit("digest ", 1)[1].strip(), busy, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--judge", type=float, default=1.5)
    options = parser.parse_args()
    scratch = tempfile.mkdtemp()
    try:
        judge = os.path.join(scratch, "judge.py")
        with open(judge, "w") as file:
            file.write(JUDGE)
        model = os.path.join(scratch, "model")
        make_model(options.program, model, options.hidden)
        common = ["task=reverse-text", "prompts=8", "samples=%d" % options.samples, "stop=", "max_tokens=%d" % options.tokens,
                  "length=%d" % (options.tokens + 64), "rate=1e-5", "microbatch=64", "reward_concurrency=4096",
                  "reward_command=%s %s %g" % (sys.executable, judge, options.judge)]
        base = None
        for lag, threads in ((0, options.threads), (1, options.threads), (2, options.threads),
                             (1, max(1, options.threads // 2))):
            settings = common + ["lag=%d" % lag, "threads=%d" % threads]
            digest, busy, rows = run(options.program, model, scratch, "lag-%d-%d" % (lag, threads), settings, options.steps)
            seconds = sum(row["seconds"] for row in rows)
            steady = sum(row["seconds"] for row in rows[2:]) / (len(rows) - 2)
            base = base or steady
            print("lag %d, %2d threads: %7.2f s, %6.3f a step, %.2f times lag 0; %2.0f %% of %d processors idle; draws %.2f, "
                  "rewards %.2f, update %.2f, waits %.2f; digest %s" %
                  (lag, threads, seconds, steady, base / steady, 100 * (1 - busy / seconds / options.threads), options.threads,
                   rows[-1]["seconds/rollout"], rows[-1]["seconds/reward"], rows[-1]["seconds/update"],
                   rows[-1].get("seconds/wait", 0), digest), flush=True)
    finally:
        shutil.rmtree(scratch)


main()
