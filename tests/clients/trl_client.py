"""TRL's own VLLMClient against `lockstep serve`: tokens and log-probabilities are those of `lockstep generate`.

Usage: trl_client.py PROGRAM SOURCE_DIR   (pip install --no-deps trl; pip install requests packaging; without them the
script says so and ends with 77.) The client's file runs unmodified. What it imports for other things than HTTP (torch,
transformers, vllm) may be missing: then empty modules of these names stand in, and its NCCL transfer is not tried."""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate, other_weights  # noqa: E402

STAND_INS = {
    "torch": "class Tensor: pass\nclass device: pass\n",
    "torch/nn": "class Module: pass\n",
    "transformers": "",
    "transformers/utils": "def get_json_schema(tool): raise NotImplementedError\n",
    "vllm": "__version__ = '0.27.0'\n",
    "vllm/utils": "",
    "vllm/utils/network_utils": "def get_ip(): return '127.0.0.1'\n",
    "vllm/distributed": "",
    "vllm/distributed/weight_transfer": "",
    "vllm/distributed/weight_transfer/nccl_engine":
        "class NCCLTrainerSendWeightsArgs: pass\nclass NCCLWeightTransferEngine: pass\n",
}


def stand_in(folder):
    """Modules for those of the list that are not installed."""
    missing = {name.split("/")[0] for name in STAND_INS if importlib.util.find_spec(name.split("/")[0]) is None}
    for name, text in STAND_INS.items():
        if name.split("/")[0] in missing:
            os.makedirs(os.path.join(folder, name))
            with open(os.path.join(folder, name, "__init__.py"), "w") as file:
                file.write(text)
    sys.path.append(folder)
    importlib.invalidate_caches()
    return sorted(missing)


def client_module():
    """trl.generation.vllm_client, without what the packages above it import."""
    root = importlib.util.find_spec("trl").submodule_search_locations[0]
    for name, path in (("trl", root), ("trl.generation", os.path.join(root, "generation"))):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    return importlib.import_module("trl.generation.vllm_client")


for needed in ("trl", "requests", "packaging"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
version = importlib.metadata.version("trl")


def check(what, found, expected):
    assert found == expected, (what, found, expected)
    print("ok: " + what)


with tempfile.TemporaryDirectory() as folder:
    print("stand-ins:", " ".join(stand_in(os.path.join(folder, "modules"))) or "none")
    program, source = sys.argv[1], sys.argv[2]
    model = os.path.join(source, "models", "tiny-text")
    server = Server(program, model)
    client = client_module().VLLMClient(base_url=server.url)
    check("health, models", client.model, "tiny")
    texts = ["The river runs", "12+7="]
    records = generate(program, model, [{"prompt": t} for t in texts], "--samples", "2", "--seed", "7", "--max-tokens", "16")
    for prompts in (texts, [r["prompt_ids"] for r in records[::2]]):
        reply = client.generate(prompts, n=2, max_tokens=16, generation_kwargs={"seed": 7})
        check("generate: prompts", reply["prompt_ids"], [r["prompt_ids"] for r in records[::2]])
        check("generate: tokens", reply["completion_ids"], [r["completion_ids"] for r in records])
        check("generate: log-probabilities", reply["logprobs"], [[[lp] for lp in r["logprobs"]] for r in records])
        check("generate: their tokens", reply["logprob_token_ids"], [[[t] for t in r["completion_ids"]] for r in records])
    reply = client.generate(texts, max_tokens=8, logprobs=3, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)
    assert all(len(row) in (3, 4) and row == sorted(row, reverse=True) for c in reply["logprobs"] for row in c)
    print("ok: generate: alternatives")
    messages = [[{"role": "user", "content": "Where to?"}], [{"role": "user", "content": "And then?"}]]
    records = generate(program, model, [{"messages": messages[0]}], "--seed", "5", "--max-tokens", "12")
    reply = client.chat(messages, max_tokens=12, generation_kwargs={"seed": 5})
    check("chat", (reply["prompt_ids"][0], reply["completion_ids"][0], reply["logprobs"][0]),
          (records[0]["prompt_ids"], records[0]["completion_ids"], [[lp] for lp in records[0]["logprobs"]]))
    whole = records[0]["prompt_ids"] + records[0]["completion_ids"]
    reply = client.get_sequence_logprobs([whole], [len(records[0]["prompt_ids"])])
    check("scores of the same tokens", [row[0] for row in reply["actual_logprobs"][0]], records[0]["logprobs"])
    check("world size", client.get_world_size(), 1)
    client.reset_prefix_cache()
    print("ok: prefix cache")
    check("no NCCL engine is told", client.get_server_info()["weight_transfer_config"], None)
    # Weights: its own steps around an update from disk.
    other = other_weights(model, os.path.join(folder, "step-1"), 1.5)
    with client.weight_update():
        client._post(server.url + "/update_weights", json={"update_info": {"weight_dir": other}})
    record, = generate(program, other, [{"prompt": texts[0]}], "--seed", "7", "--max-tokens", "16")
    reply = client.generate(texts[:1], max_tokens=16, generation_kwargs={"seed": 7})
    check("new weights", (reply["completion_ids"][0], reply["logprobs"][0]),
          (record["completion_ids"], [[lp] for lp in record["logprobs"]]))
    server.is_idle()
    server.stop()
    print("trl %s: all equal" % version)
