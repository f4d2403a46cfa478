"""SkyRL's own remote inference client against `lockstep serve`, with weights from disk that change at every step: its
rollouts have the log-probabilities that `lockstep score`, the training forward, gives the same tokens and weights.

Usage: skyrl_client.py PROGRAM SOURCE_DIR CLIENT_FILE   (CLIENT_FILE: skyrl/backends/skyrl_train/inference_servers/
remote_inference_client.py of SkyRL; pip install aiohttp orjson; without them the script says so and ends with 77.) The
file runs unmodified; the modules of SkyRL that it imports, types and settings, are stood in for below. Its own updates of
weights go through /collective_rpc to workers of vLLM, which the server refuses: here the weights come from disk."""

import asyncio
import importlib.util
import os
import sys
import tempfile
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate, other_weights, score  # noqa: E402

for needed in ("aiohttp", "orjson"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
if len(sys.argv) < 4:
    print("skipped: no client file of SkyRL is given")
    sys.exit(77)


def module(name, **members):
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(members)
    sys.modules[name] = made


for package in ("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train", "skyrl.backends.skyrl_train.inference_servers"):
    module(package)
module("skyrl.backends.skyrl_train.inference_servers.base", InferenceEngineInput=dict, InferenceEngineInterface=object,
       InferenceEngineOutput=dict, MMPlaceholderRangeInfo=dict, MultiModalFeatures=dict)
module("skyrl.backends.skyrl_train.inference_servers.generate_wire", decode_packed_routed_experts=None)
module("skyrl.backends.utils", convert_vllm_prompt_logprobs=None)
module("skyrl.env_vars", SKYRL_GENERATE_CONCURRENCY_PER_ENGINE=16, SKYRL_HTTP_CONNECTION_LIMIT=64)
spec = importlib.util.spec_from_file_location("skyrl_client_file", sys.argv[3])
skyrl = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = skyrl
spec.loader.exec_module(skyrl)

PROMPTS = ("The river runs", "In the morning", "The old")
TOKENS, STEPS = 24, 5


class Tokenizer:
    """Texts are not what is looked at here."""

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def batch_decode(self, lists, **_):
        return [self.decode(ids) for ids in lists]


async def texts(program, model, server):
    """Without a tokenizer of its own the client has the server's, and its other ways to ask."""
    server.post("/update_weights", {"weight_dir": model})
    client = skyrl.RemoteInferenceClient(proxy_url=server.url, server_urls=[server.url], data_parallel_size=1,
                                         model_name="tiny", tokenizer=None)
    records = generate(program, model, [{"prompt": p} for p in PROMPTS], "--max-tokens", str(TOKENS), "--seed", "7")
    ids = [r["prompt_ids"] for r in records]
    assert await client.tokenize(list(PROMPTS)) == ids
    assert await client.tokenize(list(PROMPTS), add_special_tokens=False) == [i[1:] for i in ids]
    assert await client.detokenize([i[1:] for i in ids]) == list(PROMPTS)
    print("ok: tokenize, detokenize")
    output = await client.generate({"prompt_token_ids": ids[:1], "sampling_params": {"max_tokens": TOKENS, "seed": 7, "logprobs": 1}})
    assert output["response_ids"] == [records[0]["completion_ids"]], (output["response_ids"], records[0])
    assert output["responses"] == await client.detokenize([records[0]["completion_ids"]])
    print("ok: generate: texts")
    reply = await client.completion({"json": {"prompt": PROMPTS[0], "max_tokens": TOKENS, "seed": 7, "session_id": "a"}})
    assert reply["choices"][0]["text"] == records[0]["text"]
    messages = [{"role": "user", "content": "Where does the river go?"}]
    chat, = generate(program, model, [{"messages": messages}], "--max-tokens", str(TOKENS), "--seed", "7")
    reply = await client.chat_completion({"json": {"messages": messages, "max_tokens": TOKENS, "seed": 7}})
    assert reply["choices"][0]["message"]["content"] == chat["text"]
    print("ok: completion, chat_completion")
    await client.teardown()


async def main(program, source, folder):
    model = os.path.join(source, "models", "tiny-text")
    server = Server(program, model)
    client = skyrl.RemoteInferenceClient(proxy_url=server.url, server_urls=[server.url], data_parallel_size=1,
                                         model_name="tiny", tokenizer=Tokenizer())
    assert await client.get_world_size() == (1, 1)
    print("ok: world size")
    prompts = [r["prompt_ids"] for r in generate(program, model, [{"prompt": p} for p in PROMPTS], "--max-tokens", "1")]
    n = n_differing = 0
    for step in range(1, STEPS + 1):
        weights = other_weights(model, os.path.join(folder, "step-%d" % step), 1 + step / 8)
        await client.pause(mode="keep")
        server.post("/update_weights", {"weight_dir": weights, "weight_version": step})
        await client.reset_prefix_cache()
        await client.resume()
        client.increment_weight_version()
        output = await client.generate({
            "prompt_token_ids": prompts, "session_ids": list(range(len(prompts))), "cache_salt": str(client.weight_version),
            "sampling_params": {"temperature": 1.0, "max_tokens": TOKENS, "logprobs": 1, "seed": step, "top_k": -1,
                                "top_p": 1.0, "min_p": 0.0, "skip_special_tokens": True}})
        whole = [ids + more for ids, more in zip(prompts, output["response_ids"])]
        for scores, found in zip(score(program, weights, whole), output["response_logprobs"]):
            n += len(found)
            n_differing += sum(a != b for a, b in zip(found, scores[-len(found) :]))
        assert n_differing == 0, (step, n_differing)
        print("ok: step %d: %d samples, rollout and rescoring have the same log-probabilities" % (step, len(whole)))
    await client.teardown()
    await texts(program, model, server)
    server.is_idle()
    server.stop()
    print("SkyRL's client: %d steps, %d tokens, %d differ" % (STEPS, n, n_differing))


with tempfile.TemporaryDirectory() as scratch:
    asyncio.run(main(*sys.argv[1:3], scratch))
