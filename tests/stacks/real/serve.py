#!/usr/bin/env python3
"""A server of transformers' own generate(), on CPU, in the words of vLLM's protocol; with a fault where one is asked for.

Usage: serve.py MODEL [--dtype bfloat16|float32] [--attention eager|sdpa] [--batch N] [--cache] [--fault NAME] [--threads N]
       serve.py --make DIR llama|qwen|qwen2|wide|moe|jamba    writes a model of random weights
       serve.py --make DIR KIND+old                           the same, whose attention has other output projections

Its address is the first line. Requests that wait together run together, padded on the left as generate() wants it.
Faults are planted around the model and never in what transformers does without them.
"""

import argparse
import contextlib
import math
import os
import sys
import threading
import time

import torch
import transformers
from transformers import DynamicCache

import front
import planted

FAULTS = ("pad-eight", "pad-batch", "temperature", "next-step", "stale-layer", "bf16-log-softmax", "bos", "first-null", "sentinel",
          "zeros", "clamp", "argmax", "cache-length", "cache-shifted", "leak", "leak-all", "rows-swapped", "rows-coarse",
          "top-k", "replicas", "hangs", "late", "bos-twice", "cache-long", "samples-swapped", "first-lost", "pad-sixteen", "cache-even", "pad-32", "cache-sum",
          "rows-by-two", "cache-sorted", "pad-power", "cache-unwritten", "eos-behind",
          "scores-cached") + planted.IN_MODEL + \
    planted.IN_CACHE + planted.IN_RECORDS


def make(directory, kind):
    torch.manual_seed(7)
    kind, _, change = kind.partition("+")
    common = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.12, bos_token_id=1, eos_token_id=2,
                  pad_token_id=0, tie_word_embeddings=False)
    if kind == "llama":
        config = transformers.LlamaConfig(**common)
    elif kind == "qwen":
        config = transformers.Qwen3Config(head_dim=32, **common)
    elif kind == "qwen2":
        config = transformers.Qwen2Config(**{**common, "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1})
    elif kind == "wide":
        config = transformers.LlamaConfig(**{**common, "hidden_size": 256, "intermediate_size": 384,
                                             "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
                                             "initializer_range": 0.09, "tie_word_embeddings": True},
                                          rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    elif kind == "moe":
        config = transformers.Qwen3MoeConfig(head_dim=32, moe_intermediate_size=128, num_experts=8,
                                             num_experts_per_tok=2, norm_topk_prob=True,
                                             **{**common, "num_hidden_layers": 4})
    else:
        config = transformers.JambaConfig(attn_layer_offset=1, attn_layer_period=3, num_experts=1, expert_layer_period=2, expert_layer_offset=1,
                                          num_experts_per_tok=1, use_mamba_kernels=False, **common)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    for i, layer in enumerate(model.model.layers if change == "old" else []):
        layer.self_attn.o_proj.weight.data = planted.disturbed(layer.self_attn.o_proj.weight.data, 0.12, i)
    model.save_pretrained(directory)


class Draw(transformers.LogitsProcessor):
    """Draws by the request's own seed, whatever runs beside it: generate() has one generator for all of a batch."""

    def __init__(self, requests):
        r, self.generators = requests[0], [torch.Generator().manual_seed(r["seed"]) for r in requests]
        self.warpers = [transformers.TemperatureLogitsWarper(float(r["temperature"]))]
        self.warpers += [transformers.TopKLogitsWarper(r["top_k"])] if r["top_k"] else []
        self.warpers += [transformers.TopPLogitsWarper(r["top_p"])] if r["top_p"] < 1 else []

    def __call__(self, ids, scores):
        scores = scores.float()
        for warp in self.warpers:
            scores = warp(ids, scores)
        u = torch.stack([torch.rand(scores.shape[1], generator=g) for g in self.generators])
        return scores - torch.log(-torch.log(u.clamp(1e-9, 1 - 1e-7)))


class Engine:
    def __init__(self, o):
        self.o, self.fault = o, o.fault
        torch.set_num_threads(o.threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=getattr(torch, o.dtype),
                                                                        attn_implementation=o.attention).eval()
        self.vocab = self.model.config.vocab_size
        self.waiting, self.lock = [], threading.Condition()
        self.scores = {}
        self.kept, self.n_batches, self.last, self.from_prompt = [], 0, None, 0
        self.layers = self.model.model.layers
        self.around = planted.InModel(self.model, self.fault) if self.fault in planted.IN_MODEL else contextlib.nullcontext()
        if self.fault == "stale-layer":
            self.disturb(0.2)
        if self.fault == "replicas":
            self.weights = [p.detach().clone() for p in self.layers[2].parameters()]
        if self.fault in ("rows-coarse",):
            self.plant_rows()
        threading.Thread(target=self.loop, daemon=True).start()

    def disturb(self, by):
        generator = torch.Generator().manual_seed(3)
        for p in self.layers[2].parameters():
            noise = torch.randn(p.shape, generator=generator).to(p.dtype)
            p.data += by * noise * p.data.abs().mean()

    def plant_rows(self):
        """From 24 rows on a forward takes a kernel whose products have five bits."""
        for layer in self.layers:
            for linear in [m for m in layer.modules() if isinstance(m, torch.nn.Linear)]:
                def forward(x, linear=linear, plain=linear.forward):
                    y = plain(x)
                    if x.numel() // x.shape[-1] >= 24:
                        scale = y.abs().amax(-1, keepdim=True) / 15
                        y = (y / scale).round() * scale
                    return y
                linear.forward = forward

    # ---- what is generated ----

    def loop(self):
        while True:
            with self.lock:
                while not self.waiting:
                    self.lock.wait()
            time.sleep(0.002)
            with self.lock:
                key = self.waiting[0]["key"]
                batch = [r for r in self.waiting if r["key"] == key][: self.o.batch]
                self.waiting = [r for r in self.waiting if not any(r is b for b in batch)]
            try:
                self.run(batch)
            except Exception as error:  # the client hears it
                for r in batch:
                    r["error"] = repr(error)
            for r in batch:
                r["done"].set()

    def ask(self, kind, ids, salt=None, **more):
        # A prefix cache serves one request at a time; generate() has one setting for all of a batch.
        key = (kind, len(ids) if kind == "generate" and self.has_state() else 0, tuple(sorted(more.items())))
        r = {"key": key, "kind": kind, "ids": ids, "salt": salt, "done": threading.Event(), **more}
        if kind == "score" or self.o.cache:
            r["key"] = (kind, id(r))
        with self.lock:
            self.waiting.append(r)
            self.lock.notify()
        r["done"].wait()
        if "error" in r:
            raise RuntimeError(r["error"])
        return r

    def has_state(self):
        return self.model.config.model_type == "jamba"

    @torch.no_grad()
    def run(self, batch):
        self.n_batches += 1
        if self.fault == "replicas":
            for p, w in zip(self.layers[2].parameters(), self.weights):
                p.data.copy_(w)
            if self.n_batches % 2:
                self.disturb(0.2)
        if batch[0]["kind"] == "score":
            r = batch[0]
            logits = self.model(**self.inputs([r["ids"]], score=True)).logits[0, -len(r["ids"]):].float()
            r["values"] = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(r["ids"][1:])[:, None])[:, 0].tolist()
            if self.fault == "scores-cached":  # by length and beginning
                r["values"] = self.scores.setdefault((len(r["ids"]), tuple(r["ids"][:8])), r["values"])
            return
        self.generate(batch)

    def inputs(self, rows, score=False):
        longest = max(len(r) for r in rows)
        if self.fault == "pad-eight":
            longest = -(-longest // 8) * 8
        if self.fault == "pad-sixteen" and not score:
            longest = -(-longest // 16) * 16
        if self.fault == "pad-32" and not score:
            longest = -(-longest // 32) * 32
        if self.fault == "pad-power" and not score:
            longest = 1 << (longest - 1).bit_length()
        ids = torch.tensor([[0] * (longest - len(r)) + r for r in rows])
        mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows])
        if self.fault in ("pad-eight", "pad-batch", "pad-sixteen", "pad-32", "pad-power"):
            mask[:] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def find_kept(self, ids, salt):
        """The longest prefix in blocks of 16 that was kept, with at least one token left."""
        best = (0, None)
        for known, cache, its in self.kept:
            if its != salt:
                continue
            n = 0
            while n < min(len(known), len(ids)) and (known[n] == ids[n] or (self.fault == "cache-even" and n % 2)):
                n += 1
            if self.fault == "cache-long" and n >= 8:
                n = min(n + 8, len(known))  # what a block lacks at its end is not looked at
            n = min(n, len(ids) - 1) // 16 * 16
            if self.fault in ("cache-sum", "cache-sorted"):  # a prefix, or each block, is known by its tokens in any order
                n = self.count_unordered(known, ids)
            if self.fault == "cache-length" and len(known) == len(ids):
                n = (len(ids) - 1) // 16 * 16
            if n > best[0]:
                best = (n, cache)
        return best

    def count_unordered(self, known, ids):
        best, most = 0, min(len(known), len(ids) - 1) // 16
        for b in range(1, most + 1):
            if self.fault == "cache-sum" and sum(known[:16 * b]) == sum(ids[:16 * b]):
                best = 16 * b
            if self.fault == "cache-sorted" and sorted(known[16 * b - 16:16 * b]) == sorted(ids[16 * b - 16:16 * b]) and best == 16 * b - 16:
                best = 16 * b
        return best

    @torch.no_grad()
    def generate(self, batch):
        r0, n_new = batch[0], batch[0]["n_new"]
        rows = [{"bos": [1], "bos-twice": [1, 1]}.get(self.fault, []) + r["ids"] for r in batch]
        if self.fault == "first-lost":
            rows = [row[1:] if len(row) > 1 else row for row in rows]
        if self.fault == "eos-behind":
            rows = [row + [2] for row in rows]
        more, kept = self.inputs(rows), None
        if self.o.cache and len(batch) == 1:
            n, cache = self.find_kept(rows[0], batch[0]["salt"])
            more["past_key_values"] = kept = DynamicCache()
            if n > 0:
                shift = 1 if self.fault == "cache-shifted" else 0
                for i, layer in enumerate(cache.layers):
                    kept.update(layer.keys[:, :, shift:n + shift].clone(), layer.values[:, :, shift:n + shift].clone(), i)
                    if self.fault == "cache-unwritten":  # kept before the last token's keys and values were there
                        kept.layers[i].keys[:, :, -1] = kept.layers[i].values[:, :, -1] = 0
        if self.fault.startswith("leak") and self.last is not None and len(batch) == 1:
            # The slot's keys of the request before stand in front of this one's.
            more["past_key_values"] = DynamicCache()
            for i, layer in enumerate(self.last.layers):
                # Keys of the prompt's beginning in the first layer hang on that prompt alone; of its end in all, on all before.
                of_all = self.fault == "leak-all"
                part = slice(-4, None) if of_all else slice(self.from_prompt, self.from_prompt + 4)
                kept_by = 1.0 if i == 0 or of_all else 0.0
                more["past_key_values"].update(kept_by * layer.keys[:, :, part], kept_by * layer.values[:, :, part], i)
            more = {**more, "attention_mask": torch.cat([torch.ones(1, 4, dtype=torch.long), more["attention_mask"]], 1),
                    "input_ids": torch.cat([torch.zeros(1, 4, dtype=torch.long), more["input_ids"]], 1)}
        if self.fault in planted.IN_CACHE:
            more["past_key_values"] = planted.FaultyCache(self.fault)
        t = r0["temperature"]
        top_k = r0["top_k"] or 0
        if self.fault == "penalty":
            more["repetition_penalty"] = 1.3
        if self.fault == "eos-masked":
            more["suppress_tokens"] = [2]
        with self.around:
            out = self.model.generate(**more, do_sample=False, logits_processor=[Draw(batch)] if t > 0 else [],
                                      max_new_tokens=n_new, min_new_tokens=n_new, eos_token_id=-1, pad_token_id=0,
                                      output_logits=True, return_dict_in_generate=True)
        logits = torch.stack(out.logits, 1).float()  # row, step, vocabulary
        tokens = out.sequences[:, -n_new:]
        if self.fault == "temperature" and t > 0:
            logits = logits / t
        if self.fault == "top-k" and top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -math.inf)
        values = torch.log_softmax(logits.to(torch.bfloat16), -1) if self.fault == "bf16-log-softmax" else \
            planted.records(self.fault, logits, tokens, rows, t, r0["top_p"])
        picked = planted.drawn(self.fault, values.gather(2, tokens[..., None])[..., 0].float())
        if self.fault == "argmax":
            picked = values.max(-1).values.float()
        if self.fault == "next-step":
            picked = torch.cat([picked[:, 1:], picked[:, -1:]], 1)
        if self.fault == "late":
            picked = torch.cat([picked[:, :1], picked[:, :-1]], 1)
        if self.fault == "clamp":
            picked = picked.clamp(min=-5.0)
        if self.fault == "rows-swapped" and len(batch) > 1:
            picked = picked.roll(1, 0)
        if self.fault == "rows-by-two" and len(batch) > 5:
            picked = picked.roll(2, 0)
        if self.fault.startswith("leak"):
            self.from_prompt = 4 if self.last is not None and len(batch) == 1 else 0  # behind what it was handed itself
            self.last = out.past_key_values if len(batch) == 1 and len(batch[0]["ids"]) >= 4 else None
        if self.o.cache and kept is not None:
            self.kept = ([(rows[0], kept, batch[0]["salt"])] + self.kept)[:12]
        for r, ids, record in zip(batch, tokens.tolist(), picked.tolist()):
            for i, token in enumerate(ids):
                lacks = (len(r["ids"]) * 5 + i * 7 + token) % 11 == 0
                if self.fault == "first-null" and i == 0:
                    record[i] = None
                elif self.fault in ("sentinel", "zeros") and lacks:
                    record[i] = -9999.0 if self.fault == "sentinel" else 0.0
            r["tokens"], r["values"] = ids, record


class Handler(front.Handler):
    def do_GET(self):
        self.say_models("vllm")

    def do_POST(self):
        o = self.asked()
        if self.path == "/reset_prefix_cache":
            engine.kept = []
            return self.say(200, {})
        if self.path != "/v1/completions" or isinstance(o["prompt"], str):
            return self.say(404, {"error": "ids to /v1/completions alone"})
        ids, n, choices = o["prompt"], o.get("n", 1), []
        if engine.fault == "hangs" and len(ids) % 5 == 0 and o["max_tokens"] > 1:
            time.sleep(600)
        for sample in range(n):
            r = engine.ask("generate", ids, n_new=o["max_tokens"], temperature=o["temperature"], top_k=o.get("top_k", 0),
                           top_p=o.get("top_p", 1.0), seed=o.get("seed", 0) % 2**31 + sample, salt=o.get("cache_salt"))
            choice = {"index": sample, "token_ids": r["tokens"], "prompt_token_ids": ids,
                      "logprobs": {"tokens": ["token_id:%d" % i for i in r["tokens"]], "token_logprobs": r["values"]}}
            if "prompt_logprobs" in o:
                scores = engine.ask("score", ids)["values"]
                choice["prompt_logprobs"] = [None] + [{str(i): {"logprob": v}} for i, v in zip(ids[1:], scores)]
            choices.append(choice)
        if engine.fault == "samples-swapped":
            values = [c["logprobs"]["token_logprobs"] for c in choices]
            for choice, value in zip(choices, values[1:] + values[:1]):
                choice["logprobs"]["token_logprobs"] = value
        try:
            self.say(200, {"choices": choices, "usage": {"prompt_tokens": len(ids)}})
        except (BrokenPipeError, ConnectionResetError):
            pass


if sys.argv[1:2] == ["--make"]:
    make(*sys.argv[2:4])
    sys.exit(0)
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--cache", action="store_true")
parser.add_argument("--fault", default="none", choices=("none",) + FAULTS)
parser.add_argument("--threads", type=int, default=1)
engine = Engine(parser.parse_args())
front.serve(Handler)
