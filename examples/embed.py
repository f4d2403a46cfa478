"""Lockstep in a Python program: draws completions, scores them, compares every bit, and takes GRPO steps on them.

Usage: embed.py MODEL_DIRECTORY"""

import sys

import numpy as np

import lockstep

SAMPLES = 8

model = lockstep.Model(sys.argv[1])
engine = lockstep.Engine(model, seed=1)
trainer = lockstep.Trainer(model, rate=1e-3)
prompts = [[1, 2, 3], [4, 5]]
for step in range(3):
    rollouts = engine.generate(prompts, samples=SAMPLES, max_tokens=8, first=step * len(prompts))
    scored = model.score([rollout.sequence for rollout in rollouts])
    recorded = np.concatenate([rollout.logprobs for rollout in rollouts])
    again = np.concatenate([score[len(rollout.prompt_tokens):] for rollout, score in zip(rollouts, scored)])
    differing = np.count_nonzero(recorded.view(np.uint32) != again.view(np.uint32))
    # The reward of a completion: how many of its tokens are even.
    rewards = [np.count_nonzero(rollout.tokens % 2 == 0) for rollout in rollouts]
    stats = trainer.policy(rollouts, lockstep.advantages(rewards, group=SAMPLES))
    engine.update()
    print(f"step {stats['step']}: {stats['tokens']} tokens, {differing} differing bits, loss {stats['loss']:g}")
    if differing:
        sys.exit(1)
