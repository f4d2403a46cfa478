"""A training step of a Hugging Face model with torch.compile on this GPU, beside bench_gpu_train.

    train_peers.py DIR SEQUENCES TOKENS [--masters]

DIR has a config.json of transformers; weights are random. A step is forward with loss, backward, norm clipped and
AdamW, in bfloat16, with moments in bfloat16. With --masters weights and moments are float32, and products autocast.
Prints milliseconds a step and tokens a second."""

import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    directory, n, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    masters = "--masters" in sys.argv
    config = AutoConfig.from_pretrained(directory)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if masters else torch.bfloat16,
                                                 attn_implementation="sdpa")
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, config.vocab_size, (n, length), device="cuda")

    def loss_of():
        with torch.autocast("cuda", torch.bfloat16, enabled=masters):
            return model(input_ids=ids, labels=ids, use_cache=False).loss

    compiled = torch.compile(loss_of)

    def step():
        compiled().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    began = time.time()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    warm = time.time() - began
    times = []
    for _ in range(5):
        began = time.time()
        step()
        torch.cuda.synchronize()
        times.append(time.time() - began)
    best = sorted(times)[2]
    print(f"{directory}: {n} x {length}, {'float32 masters' if masters else 'bfloat16'}: {best * 1e3:.1f} ms a step, "
          f"{n * length / best:.0f} tokens/s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB "
          f"(ready after {warm:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
