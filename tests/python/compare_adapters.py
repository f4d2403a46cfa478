"""Adapters that `lockstep train` writes, loaded by PEFT: all tensors, and the values of the model that they make.

    python3 tests/python/compare_adapters.py build/release/lockstep

Needs torch, transformers and peft, so no test runs it; without them it says so and exits with 77. Of every fixture that
it names an adapter is trained for two steps. PEFT must hold every tensor of the file bit for bit, and no further one.
The merged model must have, in float32 of transformers, the log-probabilities that `lockstep score` gives, and so must
base and adapter that PEFT has merged, as far as weights in bf16 allow. The exit code is 1 where one differs.
"""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
NAMES = {"jamba-dense": "all-linear", "jamba-moe": "all-linear", "jamba-bf16": "all-linear",
         "bamba-small": "all-linear", "llama-small": "all-linear", "mistral-small": "all-linear",
         "mixtral-small": "all-linear", "qwen2-small": "all-linear", "qwen3-small": "all-linear",
         "qwen3-moe-small": "all-linear", "granite-moe-small": "all-linear", "granite-odd": "all-linear",
         "mamba-small": "in_proj,x_proj,dt_proj", "falcon-mamba-small": "in_proj,x_proj,dt_proj",
         "mamba2-small": "in_proj"}  # PEFT refuses out_proj, and finds no module of Nemotron-H
TOKENS = [[1, 5, 9, 11, 3, 7, 21, 40, 8], [1, 30, 31, 17, 2]]
NEAR = {"merged": 2e-4, "PEFT's": 2e-2}  # of the second, weights are rounded to bf16 on one side alone


def lockstep(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr[-500:]}")
    return done.stdout


def train(program, base, targets, folder):
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt_ids": t[:3], "completion_ids": t[3:]}) + "\n" for t in TOKENS))
    sets = {"model": base, "run": folder / "run", "data": data, "steps": 2, "batch": 2, "rate": 0.005, "dtype": "f32",
            "profile": "exact", "schedule": "constant", "lora_rank": 4, "lora_alpha": 8,
            "lora_targets": targets}
    lockstep(program, "train", "sft", *[w for k, v in sets.items() for w in ("--set", f"{k}={v}")])
    return folder / "run/checkpoints/step-00000002"


def values(model, torch):
    out = []
    with torch.no_grad():
        for tokens in TOKENS:
            logits = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
            out += [logits[i, t].item() for i, t in enumerate(tokens[1:])]
    return out


def own_values(program, model, folder):
    path = folder / "tokens.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "token_ids": t}) + "\n" for i, t in enumerate(TOKENS)))
    text = lockstep(program, "score", "--model", model, "--tokens", path)
    return [v for line in text.splitlines() if "logprobs" in line for v in json.loads(line)["logprobs"]]


def farthest(a, b):
    assert len(a) == len(b), (len(a), len(b))
    return max(abs(x - y) for x, y in zip(a, b))


def try_fixture(program, name, torch, transformers, peft, load_file):
    base = FIXTURES / name
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        adapter, merged = train(program, base, NAMES[name], folder), folder / "merged"
        lockstep(program, "merge", adapter, "--out", merged)
        own = own_values(program, merged, folder)
        before = own_values(program, base, folder)
        load = functools.partial(transformers.AutoModelForCausalLM.from_pretrained, experts_implementation="eager")
        held = peft.PeftModel.from_pretrained(load(base, dtype=torch.float32), adapter).eval()
        state = {k.replace(".default.", "."): v for k, v in held.state_dict().items() if "lora_" in k}
        file = load_file(adapter / "adapter_model.safetensors")
        equal = state.keys() == file.keys() and all(torch.equal(state[k].float(), file[k].float()) for k in file)
        far = {"merged": farthest(values(load(merged, dtype=torch.float32).eval(), torch), own),
               "PEFT's": farthest(values(held.merge_and_unload(), torch), own)}
    moved = farthest(own, before)
    good = equal and moved > 0.02 and all(far[k] < NEAR[k] * max(1, moved) for k in NEAR)
    print(f"{name}: {len(file)} tensors {'equal' if equal else 'DIFFER'}, merged {far['merged']:.2g}, "
          f"merged by PEFT {list(far.values())[1]:.2g}, moved {moved:.2g}{'' if good else '  DIFFERS'}")
    return good


def main():
    try:
        import peft
        import torch
        import transformers
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    transformers.logging.set_verbosity_error()
    good = [try_fixture(sys.argv[1], name, torch, transformers, peft, load_file) for name in sys.argv[2:] or NAMES]
    print(f"{sum(good)} of {len(good)} equal, peft {peft.__version__}, transformers {transformers.__version__}")
    return 0 if all(good) else 1


sys.exit(main())
