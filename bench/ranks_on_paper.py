#!/usr/bin/env python3
"""A step of GRPO at Jamba-3B's shape on 1 to 1,024 GPUs, on paper: the tables of docs/lab/scaling.md.

Usage: bench/ranks_on_paper.py

Rollouts and the exchange are measured, training is one rate a token. So what the check of measured steps tries is that training is
in proportion to the tokens and that the parts add up: its rollouts and its exchange are those of the same runs. Beside a step of
two GPUs, or of one whose gradients fit it, the sum may be 3 %, or the script fails. One GPU with 512 or 1,024 sequences has
no room for all its gradients and takes longer than the model says; that of 1,024 is shown and not held to.
"""
import math
import random
import sys

PARAMETERS = 3.029e9
NEW, PROMPT, SAMPLES = 512, 512, 16
HOST = 8  # GPUs of a host

# Measured on two H200s of one machine in one call, 2026-11-25 (bench_ranks, leaves of 128 in forwards of 8,192 rows, one timed
# step each), but for the ticks of few sequences, which are of 2026-11-24 (docs/lab/gpu-models.md).
# Seconds of a rank's sequences, prompts included: 128 of one and of two GPUs, 256 and 1,024 of one, 512 of two.
ROLLOUT = {128: 2.180, 256: 3.311, 512: 5.886, 1024: 11.781}
TICK = {1: 1 / 460, 8: 8 / 3557, 16: 16 / 6610, 32: 32 / 12065, 64: 64 / 20890}  # seconds of decoding a token each
PREFILL = 75073  # tokens a second
TRAIN = (1.832 + 4.843) / (128 * 1024)  # gate and gradients, seconds a token, of 128 sequences on one GPU
ONE_GPU = 68.518  # seconds of a step of 1,024 sequences; its gradients leave room for forwards of 4,096 rows
EXCHANGE_HERE = 9.088e9 / 0.0527  # bytes a second, each way, two GPUs: sums by ranges and weights
EXCHANGE_THERE = 45e9  # assumed: 400 Gb/s for each GPU between hosts
OPTIMIZER = 0.030  # seconds of all parameters on one GPU
TOGETHER = 0.012  # seconds of a step's small exchanges: of 256 sequences on two GPUs, with the wait for the slower one
SKEW = 0.005  # of training, the wait for the slower of two GPUs: 0.3 to 0.7 % were seen
CHECKPOINT = 42.4e9 / 1.03e9  # seconds: bytes by the disk's rate, measured with its sync


def tick(n):
    """Between measured numbers of sequences: linear."""
    known = sorted(TICK)
    for a, b in zip(known, known[1:]):
        if a <= n <= b:
            return TICK[a] + (TICK[b] - TICK[a]) * (n - a) / (b - a)
    raise ValueError(n)


def rollout(n):
    if n in ROLLOUT:
        return ROLLOUT[n]
    return NEW * tick(n) + max(1, n // SAMPLES) * PROMPT / PREFILL


def train(n):
    return n * (PROMPT + NEW) * TRAIN


def exchange(ranks):
    """Gradients in float32 and weights in bf16, (W - 1) / W of them each way; between hosts by the slower way."""
    if ranks == 1:
        return 0.0
    here = min(ranks, HOST)
    there = ranks - here
    each = PARAMETERS * 6 / ranks  # bytes to and from each other rank
    return (here - 1) * each / EXCHANGE_HERE + there * each / EXCHANGE_THERE


def step(n_all, ranks):
    n = n_all // ranks
    together = exchange(ranks) + TOGETHER + SKEW * train(n) if ranks > 1 else 0.0
    return rollout(n) + train(n) + OPTIMIZER / ranks + together


def spread(ranks, prompts, draws=200):
    """How much more than the mean the fullest of the ranks has to learn from, leaves by number: problems with typical
    completions of 1 to NEW tokens, evenly spread, their samples up to a quarter shorter."""
    source, worst = random.Random(1), 0.0
    for _ in range(draws):
        loads = [0.0] * ranks
        for p in range(prompts):
            typical = source.random()
            for s in range(SAMPLES):
                rank = (p * SAMPLES + s) * ranks // (prompts * SAMPLES)
                loads[rank] += PROMPT + 1 + (NEW - 1) * typical * (1 - 0.25 * source.random())
        worst += max(loads) * ranks / sum(loads)
    return worst / draws - 1


def main():
    measured = [("256 sequences, one GPU", step(256, 1), 16.734), ("256, two GPUs", step(256, 2), 8.881),
                ("1,024, two GPUs", step(1024, 2), 32.486)]
    without_room = [("1,024, one GPU, not held to", step(1024, 1), ONE_GPU)]
    print("| a step | on paper, s | measured | |\n|---|---|---|---|")
    for name, paper, real in measured + without_room:
        print(f"| {name} | {paper:.2f} | {real:.2f} | {100 * (paper / real - 1):+.1f} % |")
    room = step(1024, 1)
    print("\n| GPUs | sequences of each | rollout | training | exchange | step, s | times one GPU | one with room | "
          "the fullest rank |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(f"| 1 | 1,024 | {rollout(1024):.2f} | | | {ONE_GPU:.2f}, measured | 1 | | |")
    print(f"| 1, with room | 1,024 | {rollout(1024):.2f} | {train(1024):.2f} | | {room:.2f} | | 1 | |")
    for ranks in (2, 4, 8, 16, 64, 256, 1024):
        n, s = 1024 // ranks, step(1024, ranks)
        print(f"| {ranks:,} | {n:,} | {rollout(n):.2f} | {train(n):.2f} | {exchange(ranks):.2f} | {s:.2f} | "
              f"{ONE_GPU / s:.2f} | {room / s:.2f} | +{100 * spread(ranks, 64, 200 if ranks <= 64 else 20):.0f} % |")
    print("\n| GPUs, 1,024 sequences of each | exchange | step, s |\n|---|---|---|")
    for ranks in (8, 64, 1024):
        print(f"| {ranks:,} | {exchange(ranks):.2f} | {step(1024 * ranks, ranks):.2f} |")
    print(f"\ncheckpoint {CHECKPOINT:.0f} s: every 100 steps {CHECKPOINT / ONE_GPU:.1f} % on one GPU, "
          f"{CHECKPOINT / step(1024, 8):.1f} % on eight")
    wrong = [name for name, paper, real in measured if abs(math.log(paper / real)) > 0.03]
    if wrong:
        sys.exit("ranks_on_paper: more than 3 % beside what was measured: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
