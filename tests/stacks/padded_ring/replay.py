#!/usr/bin/env python3
"""Rollouts by transformers without any cache: each token is drawn from a forward over the whole text.

Rows are filled up on the right, where nothing causal sees it. Faults (--bug NAME[:NUMBER]) act by hooks, by logits
processors of transformers and by how rows are laid out. Levers: samples and batch. Needs torch and transformers.
"""

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "paged_tree"))
import protocol  # noqa: E402

try:
    import torch
    import transformers
except ImportError as problem:
    sys.exit(f"this suspect needs torch and transformers: {problem}")

torch.set_num_threads(1)
torch.set_grad_enabled(False)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
DEFAULTS = {"bug": "", "type": "float32", "samples": 1, "batch": 4, "max-tokens": 16, "temperature": 1.0, "seed": 0,
            "logprobs": "raw", "dtype": "f32", "ignore-eos": False}


def plant(model, name, n):
    """Faults of weights and modules."""
    layers = model.base_model.layers
    linear = [m for m in layers[min(int(n), len(layers) - 1)].modules() if isinstance(m, torch.nn.Linear)]
    if name == "adapter-merged-twice":
        layer = linear[0].weight
        g = torch.Generator().manual_seed(1)
        delta = torch.randn(layer.shape[0], 2, generator=g) @ torch.randn(2, layer.shape[1], generator=g)
        layer += 0.05 * layer.std() * delta
    elif name == "layer-in-eight-bits":
        for m in linear:
            scale = m.weight.abs().amax(-1, keepdim=True) / 127
            m.weight.copy_(torch.round(m.weight / scale) * scale)
    elif name == "all-behind":  # a sync that was missed
        g = torch.Generator().manual_seed(3)
        for p in (p for p in model.parameters() if p.dim() == 2):
            p += n / 1000 * p.std() * torch.randn(p.shape, generator=g)
    elif name == "skip-sent-as-zeros":  # D is a parameter without ".weight" in its name
        for m in model.modules():
            if hasattr(m, "D") and isinstance(m.D, torch.nn.Parameter):
                m.D.zero_()
    elif name == "scaling-percent":
        for m in model.modules():
            if hasattr(m, "scaling"):
                m.scaling *= n / 100
    elif name == "branch-in-training":  # dropout of attention was left on
        for m in model.modules():
            if hasattr(m, "attention_dropout"):
                m.attention_dropout = n / 100
                m.train()
    elif name == "activation-of-another":
        for m in model.modules():
            if hasattr(m, "act_fn"):
                m.act_fn = torch.nn.GELU()
    elif name == "head-in-bf16":  # maxtext#5231
        model.get_output_embeddings().register_forward_hook(lambda m, x, y: y.bfloat16().float())


def processors(name, n, ends):
    """Logits processors, as a generation_config asks for them."""
    return {
        "repetition-of-config": lambda: transformers.RepetitionPenaltyLogitsProcessor(n / 100),
        "top-p-of-config": lambda: transformers.TopPLogitsWarper(n / 100),
        "top-k-of-config": lambda: transformers.TopKLogitsWarper(int(n)),
        "epsilon-of-config": lambda: transformers.EpsilonLogitsWarper(n / 1e5),
        "temperature-of-config": lambda: transformers.TemperatureLogitsWarper(n / 100),
        "at-least-so-many": lambda: transformers.MinLengthLogitsProcessor(int(n), ends),
    }.get(name, lambda: None)()


class Replay:
    def __init__(self, o):
        self.name, _, number = o["bug"].partition(":")
        self.n = float(number or 1)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(o["model"], dtype=torch.float32).eval()
        c = self.model.config
        self.ends = c.eos_token_id if isinstance(c.eos_token_id, list) else [c.eos_token_id]
        self.begin = c.bos_token_id
        plant(self.model, self.name, self.n)
        self.model.to(getattr(torch, o["type"]))
        self.processor = processors(self.name, self.n, self.ends)

    def last(self, rows):
        """Logits after each row."""
        if self.name == "rows-joined":  # SkyRL#2056: one row without borders
            ends = torch.tensor([len(r) for r in rows]).cumsum(0) - 1
            return self.model(torch.tensor([sum(rows, [])]), use_cache=False).logits[0, ends]
        width = max(len(r) for r in rows)
        left = self.name == "padded-on-the-left"
        fill = lambda r: [0] * (width - len(r))  # noqa: E731
        tokens = torch.tensor([fill(r) + r if left else r + fill(r) for r in rows])
        at = torch.tensor([width - 1 if left else len(r) - 1 for r in rows])
        low = {"bf16-from-rows": len(rows), "bf16-from-width": width}.get(self.name, 0) >= self.n
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            logits = self.model(tokens, use_cache=False).logits[range(len(rows)), at].float()
        if self.name == "longest-first":  # sorted for the forward, and not sorted back
            logits = logits[sorted(range(len(rows)), key=lambda i: -len(rows[i]))]
        return logits

    def batch(self, requests, o):
        begin = [self.begin] if self.name == "begin-always" else []
        rows = [begin + list(r["given"]) for r in requests]
        starts, records, t = [len(r) for r in rows], [[] for _ in rows], o["temperature"]
        going = set(range(len(rows)))
        while going:
            order = sorted(going)
            logits = self.last([rows[i] for i in order])
            for i, x in zip(order, logits):
                if self.processor is not None:
                    x = self.processor(torch.tensor([rows[i]]), x[None].clone())[0]
                x = x.double()
                if self.name == "rounded-scores":
                    x = x.half().double()
                drawn = torch.log_softmax(x / t if t > 0 else x, -1)
                draw = random.Random(f"{o['seed']} {requests[i]['id']} {len(records[i])}").random()
                place = torch.searchsorted(drawn.exp().cumsum(0), draw) if t > 0 else x.argmax()
                token = min(int(place), len(x) - 1)
                raw = o["logprobs"] == "raw" and self.name != "scores-for-logits"
                values = torch.log_softmax(x, -1) if raw else drawn
                records[i].append(float(values[token].half() if self.name == "record-in-half" else values[token]))
                rows[i].append(token)
                if len(records[i]) == o["max-tokens"] or token in self.ends and not o["ignore-eos"]:
                    going.discard(i)
        if self.name == "labels-shifted-twice":
            records = [r[1:] + r[-1:] for r in records]
        return [(r[s:], v) for r, s, v in zip(rows, starts, records)]


MODELS = {}


def generate(words):
    o = protocol.options(words, DEFAULTS)
    if o["dtype"] != "f32":
        raise ValueError("this stack has one type of activations")
    key = (o["model"], o["bug"], o["type"])
    if key not in MODELS:
        MODELS[key] = Replay(o)
    records, requests = [], protocol.requests(o)
    for i in range(0, len(requests), o["batch"]):
        some = requests[i : i + o["batch"]]
        for request, (ids, values) in zip(some, MODELS[key].batch(some, o)):
            levers = {"batch": o["batch"], "samples": o["samples"]}
            records.append({"id": request["id"], "completion_ids": ids, "logprobs": values, "meta": {"levers": levers}})
    protocol.write(o["out"], records)


if __name__ == "__main__":
    protocol.run(generate)
