"""The checkpoint as a stack loads it. Faults of loading and of weight updates are planted here."""

import json
import os
import struct

import numpy as np
from formats import F, FORMATS, e4m3, integers


def read(directory):
    weights = {}
    for name in sorted(n for n in os.listdir(directory) if n.startswith("model") and n.endswith(".safetensors")):
        with open(os.path.join(directory, name), "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header, data = json.loads(file.read(size)), file.read()
        header.pop("__metadata__", None)
        for key, t in header.items():
            raw = data[slice(*t["data_offsets"])]
            if t["dtype"] == "BF16":
                flat = np.left_shift(np.frombuffer(raw, "<u2").astype(np.uint32), 16).view(F)
            else:
                flat = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(F)
            weights[key] = flat.reshape(t["shape"]).copy()
    return weights


def older(w, by, salt):
    """The weights of an earlier step: every element somewhat elsewhere."""
    draws = np.random.default_rng([salt, w.size]).standard_normal(w.shape)
    return (w * (1 + by * draws)).astype(F)


class Model:
    """The checkpoint as this stack loads it; faults of loading and of weight updates are planted here."""

    def __init__(self, directory, bug, load):
        c = json.load(open(os.path.join(directory, "config.json")))
        self.config, w = c, read(directory)
        if load:
            w = {k: FORMATS[load](v) if v.ndim > 1 and "conv1d" not in k else v for k, v in w.items()}
        self.hidden, self.vocab = c["hidden_size"], c["vocab_size"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head = self.hidden // self.heads
        self.inner, self.states = c["mamba_expand"] * self.hidden, c["mamba_d_state"]
        rank = c["mamba_dt_rank"]
        self.rank = -(-self.hidden // 16) if rank == "auto" else rank
        self.width, self.eps = c["mamba_d_conv"], c["rms_norm_eps"]
        eos = c["eos_token_id"]
        self.eos = eos[0] if isinstance(eos, list) else eos
        self.bos, self.pad = c["bos_token_id"], c["pad_token_id"]
        self.layers = []
        for i in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            self.layers.append({k[len(prefix) :]: v for k, v in w.items() if k.startswith(prefix)})
        self.is_attention = ["self_attn.q_proj.weight" in layer for layer in self.layers]
        self.embed, self.norm = w["model.embed_tokens.weight"], w["model.final_layernorm.weight"]
        self.unembed = w.get("lm_head.weight", self.embed)
        self.damage(bug)
        # The older policy, for paths recorded before the last update.
        self.before = [
            {
                k: older(v, 0.05, 7)
                for k, v in layer.items()
                if k.endswith("in_proj.weight") or k.endswith("up_proj.weight")
            }
            for layer in self.layers
        ]

    def damage(self, bug):
        name, _, number = bug.partition(":")
        at = int(number) if number.lstrip("-").isdigit() else 0
        layer = self.layers[at % len(self.layers)]
        if name == "gate-up-exchanged":
            a, b = "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"
            layer[a], layer[b] = layer[b], layer[a]
        elif name == "in-proj-halves-exchanged":
            w = layer["mamba.in_proj.weight"]
            layer["mamba.in_proj.weight"] = np.concatenate([w[self.inner :], w[: self.inner]])
        elif name == "norm-dropped":
            layer["pre_ff_layernorm.weight"] = np.ones(self.hidden, F)
        elif name == "scale-dropped":
            key = next(
                k for k in ("feed_forward.down_proj.weight", "feed_forward.experts.0.down_proj.weight") if k in layer
            )
            w = layer[key].copy()
            w[: len(w) // 4] *= F(0.5)
            layer[key] = w
        elif name == "layer-four-bits":
            layer.update({k: integers(v, 4, -1) for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-eight-bits":
            layer.update({k: e4m3(v * 8) / 8 for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-older":
            layer.update({k: older(v, 0.02, 3) for k, v in layer.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "layer-of-next":
            other = self.layers[(at + 1) % len(self.layers)]
            layer.update(
                {
                    k: v
                    for k, v in other.items()
                    if k in layer and k.startswith("feed_forward") and v.shape == layer[k].shape
                }
            )
        elif name == "experts-exchanged":
            for kind in ("gate", "up", "down"):
                a, b = (f"feed_forward.experts.{e}.{kind}_proj.weight" for e in (0, 2))
                layer[a], layer[b] = layer[b], layer[a]
        elif name == "head-of-older-policy":
            self.unembed = older(self.unembed, 0.02, 11)
        elif name == "all-older":
            by = at / 10000
            self.layers = [
                {k: older(v, by, i) if v.ndim == 2 else v for k, v in x.items()} for i, x in enumerate(self.layers)
            ]
        elif name == "adapter-not-delivered":
            draws = np.random.default_rng(5)
            for x, attends in zip(self.layers, self.is_attention):
                key = "self_attn.q_proj.weight" if attends else "mamba.in_proj.weight"
                rows, columns = x[key].shape
                a, b = draws.standard_normal((rows, 2)), draws.standard_normal((2, columns))
                x[key] = (x[key] - 0.01 * (a @ b)).astype(F)
        elif name == "all-eight-bits":
            for x in self.layers:
                x.update({k: integers(v, 8, -1) for k, v in x.items() if v.ndim == 2 and "A_log" not in k})
        elif name == "embedding-four-bits":
            self.embed = integers(self.embed, 4, -1)
        elif name == "bias-not-loaded":
            for x in self.layers:
                if "mamba.conv1d.bias" in x:
                    x["mamba.conv1d.bias"] = np.zeros_like(x["mamba.conv1d.bias"])
        elif name == "skip-not-loaded":
            for x in self.layers:
                if "mamba.D" in x:
                    x["mamba.D"] = np.ones_like(x["mamba.D"]) * F(1.1)
