"""TRL's GRPOTrainer from PyPI, unmodified, on a model put through lockstep.patch, with rollouts from `lockstep serve`
and weights sent at every step: TRL's own sampling_logp_difference, beside the same run without the patch.

Usage: trl_grpo.py PROGRAM SOURCE_DIR [--device cpu|cuda] [--model DIR | --random ARCHITECTURE]
                   [--steps N] [--temperature T] [--profile exact|mma16] [--only patched|plain] [--rate R]
                   [--push whole|changed]
(pip install torch transformers trl datasets requests; without them the script says so and ends with 77.) With --device
cuda trainer and server share the first GPU. Ends with 0 where the patched run's mean and max are 0.0 at every step and
the plain run's are not, else with 1. With --push changed the server must end with the bits of the model, and have read
less than whole weights at each step but the first."""

import argparse
import importlib.metadata
import importlib.util
import os
import random
import sys
import tempfile
import time
import warnings

for needed in ("torch", "transformers", "trl", "datasets", "accelerate", "requests"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source")
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
parser.add_argument("--model", help="a checkpoint with the tokenizer of models/tiny-sort, which is the default")
parser.add_argument("--random",
                    choices=("falcon_mamba", "granitemoehybrid", "llama", "mamba2", "mistral", "mixtral",
                             "nemotron_h", "qwen2", "qwen3", "qwen3_5_text", "qwen3_moe"),
                    help="small random weights of this architecture, with the tokenizer of models/tiny-sort")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--profile", default="exact", choices=("exact", "mma16"))
parser.add_argument("--rate", type=float, default=3e-4)
parser.add_argument("--push", default="whole", choices=("whole", "changed"))
parser.add_argument("--only", choices=("patched", "plain"))
options = parser.parse_args()
sys.path[:0] = [os.path.join(options.source, "python"), os.path.join(options.source, "tests", "serve")]
os.environ.setdefault("LOCKSTEP_LIBRARY", os.path.join(os.path.dirname(os.path.abspath(options.program)),
                                                       "liblockstep.so"))
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from serving import Server  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import lockstep.trl  # noqa: E402

DTYPE = torch.bfloat16 if options.profile == "mma16" else torch.float32


def problems(n):
    """Lines as tiny-sort reads them, and what it should answer."""
    draw = random.Random(3)
    digits = [[draw.randrange(10) for _ in range(draw.randrange(3, 6))] for _ in range(n)]
    return Dataset.from_list([{"prompt": "sort %s:" % " ".join(map(str, d)), "answer": " ".join(map(str, sorted(d)))}
                              for d in digits])


def reward(completions, answer, **_):
    """Share of the answer's characters that are right, 1 for all of it."""
    pairs = [(c.strip(), w) for c, w in zip(completions, answer)]
    return [sum(a == b for a, b in zip(c, w)) / max(len(w), len(c)) for c, w in pairs]


class Told(TrainerCallback):
    """What TRL logs, and how many steps gave the model other weights."""

    def __init__(self):
        self.rows, self.weights, self.changes = [], [], 0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]

    def on_step_end(self, args, state, control, model=None, **kwargs):
        before = self.weights
        self.on_train_begin(args, state, control, model)
        self.changes += any(not torch.equal(a, b) for a, b in zip(before, self.weights))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "sampling/sampling_logp_difference/max" in logs:
            self.rows.append(logs)


def random_model(architecture, vocab):
    """Of fewer key heads than heads, with weights large enough that its choices are not all alike; a mixture has eight
    experts, of which three are chosen."""
    more = {"sliding_window": None} if architecture in ("mistral", "mixtral") else {}
    if architecture == "falcon_mamba":
        more = {"state_size": 8, "expand": 2}
    elif architecture == "mamba2":
        more = {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2}
    elif architecture == "granitemoehybrid":
        more = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "mamba_d_state": 16,
                "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "num_local_experts": 8,
                "num_experts_per_tok": 3, "shared_intermediate_size": 48, "residual_multiplier": 0.8,
                "position_embedding_type": "rope"}
    elif architecture == "nemotron_h":
        more = {"layers_block_type": ["mamba", "moe", "attention"], "ssm_state_size": 16, "mamba_num_heads": 8,
                "mamba_head_dim": 16, "n_groups": 2, "n_routed_experts": 8, "num_experts_per_tok": 3,
                "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 48}
    elif architecture == "qwen3_5_text":
        more = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_key_head_dim": 8,
                "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    elif architecture == "qwen3_moe":
        more = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}
    elif architecture == "mixtral":
        more |= {"num_local_experts": 8, "num_experts_per_tok": 3}
    if architecture not in ("falcon_mamba", "mamba2"):
        more |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
                 "intermediate_size": 96}
    if architecture not in ("falcon_mamba", "mamba2", "nemotron_h"):
        more |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = AutoConfig.for_model(
        architecture, vocab_size=vocab, hidden_size=64, num_hidden_layers=3, initializer_range=0.15,
        tie_word_embeddings=architecture != "nemotron_h", bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)
    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(config, dtype=DTYPE)


def check_pushes(trainer, server, folder):
    """One push more, of the last step's weights, and what the server then has."""
    trainer.vllm_generation.sync_weights()
    pushed, last = trainer.vllm_generation.pushed, os.path.join(folder, "last")
    print("bytes of each push:", *pushed)
    assert len(pushed) == trainer.vllm_generation.version and max(pushed[1:]) < pushed[0], pushed
    trainer.model.save_pretrained(last)
    whole = Server(options.program, last)
    checksums = [s.post("/weight_checker", {"action": "checksum"})["checksum"] for s in (server, whole)]
    whole.stop()
    assert checksums[0] == checksums[1], checksums


def run(patched, folder):
    """TRL's logs of one run."""
    source = options.model or os.path.join(options.source, "models", "tiny-sort")
    start = os.path.join(folder, "start")
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = random_model(options.random, len(tokenizer)) if options.random else \
        AutoModelForCausalLM.from_pretrained(source, dtype=DTYPE)
    model.save_pretrained(start)  # in the type that is trained, which is the type that is served
    tokenizer.save_pretrained(start)
    server = Server(options.program, start, "--device", options.device, "--profile", options.profile,
                    "--dtype", "bf16" if options.profile == "mma16" else "f32",
                    "--logprobs", "processed" if options.temperature != 1.0 else "raw",
                    *(["--memory-fraction", "0.5"] if options.device == "cuda" else []))  # the trainer has the rest
    config = GRPOConfig(
        output_dir=os.path.join(folder, "out"), max_steps=options.steps, per_device_train_batch_size=16,
        num_generations=8, max_completion_length=12, learning_rate=options.rate, temperature=options.temperature,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=options.device == "cpu", seed=1, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, top_k=0, dataloader_pin_memory=False,
        router_aux_loss_coef=0.0)
    told = Told()
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=problems(512),
                          processing_class=tokenizer, callbacks=[told])
    lockstep.trl.attach(trainer, server.url, folder, profile=options.profile, patched=patched,
                        generation_kwargs={"seed": 5}, push=options.push)
    begin = time.time()
    trainer.train()
    seconds = time.time() - begin
    updates = trainer.vllm_generation.version
    if options.push == "changed":
        check_pushes(trainer, server, folder)
    server.stop()
    return told, updates, seconds / max(len(told.rows), 1)


def main():
    found = {}
    for name in ("patched", "plain"):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                found[name] = run(name == "patched", folder)
    key = "sampling/sampling_logp_difference/"
    print("\nstep " + "".join("| %-9s mean         max  reward " % name for name in found))
    for i in range(options.steps):
        print("%4d " % (i + 1) + "".join("| %14.6g %11.6g  %6.3f " % (
            told.rows[i][key + "mean"], told.rows[i][key + "max"], told.rows[i]["reward"])
            for told, _, _ in found.values()))
    good = True
    for name, (told, updates, seconds) in found.items():
        rows = told.rows
        values = [row[key + which] for row in rows for which in ("mean", "max")]
        zero = len(rows) == options.steps and all(value == 0.0 for value in values)
        print("%s: %d steps, %d gave other weights, sent %d times, %.2f s a step: the difference is %s" % (
            name, len(rows), told.changes, updates, seconds,
            "0.0 at every step" if zero else "at most %g" % max(values, default=-1)))
        gradients = sum(row["grad_norm"] > 0.0 for row in rows)  # none where the rewards of a group are all the same
        good &= zero == (name == "patched") and updates >= options.steps and told.changes >= gradients > 0
    print("%s, trl %s, torch %s, transformers %s, %s, %s: %s" % (
        "random " + options.random if options.random else os.path.basename(options.model or "tiny-sort"),
        *(importlib.metadata.version(p) for p in ("trl", "torch", "transformers")), options.profile,
        torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu",
        "as it should be" if good else "FAILED"))
    return 0 if good else 1


sys.exit(main())
