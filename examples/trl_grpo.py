#!/usr/bin/env python3
"""TRL's GRPOTrainer with rollouts of a Lockstep server, and log-probabilities that agree with them bit for bit.

    lockstep serve --model models/tiny-sort --port 8000 &
    python3 examples/trl_grpo.py models/tiny-sort http://127.0.0.1:8000

The difference that is printed, TRL's own sampling_logp_difference, is 0.0 at every step; docs/guide/torch.md says why."""

import random
import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import lockstep.trl


def reward(completions, answer, **_):
    """1 for the right answer, else 0."""
    return [float(completion.strip() == wanted) for completion, wanted in zip(completions, answer)]


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" in logs:
            print(f"step {state.global_step}: reward {logs['reward']:.3f}, difference",
                  logs["sampling/sampling_logp_difference/max"], flush=True)


def main(directory, url, steps=20):
    digits = [random.choices(range(10), k=4) for _ in range(1000)]
    data = Dataset.from_list([{"prompt": f"sort {' '.join(map(str, d))}:", "answer": " ".join(map(str, sorted(d)))}
                              for d in digits])
    config = GRPOConfig(output_dir="trl-out", max_steps=int(steps), per_device_train_batch_size=16, num_generations=8,
                        max_completion_length=12, learning_rate=3e-4, top_k=0, logging_steps=1, report_to=[],
                        save_strategy="no", router_aux_loss_coef=0.0, gradient_checkpointing=False, bf16=False,
                        disable_tqdm=True)
    trainer = GRPOTrainer(model=AutoModelForCausalLM.from_pretrained(directory, dtype="float32"), reward_funcs=reward,
                          args=config, train_dataset=data, callbacks=[Print()],
                          processing_class=AutoTokenizer.from_pretrained(directory))
    lockstep.trl.attach(trainer, url)  # when the trainer is there: it gives its model a forward of its own
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
