"""prime-rl's own client code against `lockstep serve`, with weights from disk that change at every step: at each, scores by
the server have the log-probabilities that `lockstep generate` wrote with the same weights.

Usage: prime_rl_client.py PROGRAM SOURCE_DIR CLIENT_FILE   (CLIENT_FILE: src/prime_rl/utils/client.py of prime-rl; pip
install openai tenacity; without them the script says so and ends with 77.) The file runs unmodified. What it imports
besides HTTP (verifiers, renderers, vllm's response model, prime-rl's own settings and log) is stood in for below."""

import asyncio
import importlib.util
import json
import logging
import os
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate, other_weights  # noqa: E402

for needed in ("openai", "httpx", "tenacity"):
    if importlib.util.find_spec(needed) is None:
        print("skipped: the package %s is not installed" % needed)
        sys.exit(77)
if len(sys.argv) < 4:
    print("skipped: no client file of prime-rl is given")
    sys.exit(77)


class GenerateResponse:
    """What the client reads of vllm's model of the same name."""

    @staticmethod
    def model_validate_json(text):
        reply = json.loads(text)
        for key in ("request_id", "choices", "prompt_logprobs"):
            assert key in reply, key
        return types.SimpleNamespace(**reply)


def module(name, **members):
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(members)
    sys.modules[name] = made


class Config(types.SimpleNamespace):
    pass


for name in ("verifiers", "verifiers.v1", "verifiers.v1.configs", "vllm", "vllm.entrypoints", "vllm.entrypoints.scale_out",
             "vllm.entrypoints.scale_out.token_in_token_out", "prime_rl", "prime_rl.configs", "prime_rl.utils"):
    module(name)
sys.modules["verifiers.v1"].ClientConfig = Config
module("verifiers.v1.configs.client", EvalClientConfig=Config, TrainClientConfig=Config)
module("vllm.entrypoints.scale_out.token_in_token_out.protocol", GenerateResponse=GenerateResponse)
module("renderers", RendererConfig=Config)
module("prime_rl.configs.shared", ClientConfig=Config)
module("prime_rl.utils.logger", get_logger=lambda: logging.getLogger("prime-rl"))
spec = importlib.util.spec_from_file_location("prime_client", sys.argv[3])
prime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prime)


async def main(program, source, folder):
    model = os.path.join(source, "models", "tiny-text")
    server = Server(program, model)
    config = Config(base_url=server.url + "/v1", admin_base_url=None, api_key_var="NO_KEY", headers={}, headers_from_env={},
                    skip_model_check=False)
    admins = prime.setup_admin_clients(config)
    await prime.check_health(admins, timeout=10)
    await prime.maybe_check_has_model(admins, "tiny")
    print("ok: health, models")
    scorer = prime.PrefillScorer()
    for step in range(1, 6):
        whole = other_weights(model, os.path.join(folder, "whole-%d" % step), 1 + step / 8)
        bare = other_weights(model, os.path.join(folder, "step-%d" % step), 1 + step / 8, files=())
        pathlib.Path(bare, "STABLE").touch()
        await prime.update_weights(admins, pathlib.Path(bare), step=step)
        record, = generate(program, whole, [{"prompt": "The river runs"}], "--seed", str(step), "--max-tokens", "24")
        ids = record["prompt_ids"] + record["completion_ids"]
        scores = await scorer.score(config, "tiny", ids)
        assert scores[len(record["prompt_ids"]) :] == record["logprobs"], (step, scores, record["logprobs"])
        rollout = server.post("/inference/v1/generate", {
            "model": "tiny", "token_ids": record["prompt_ids"], "cache_salt": str(step),
            "sampling_params": {"seed": step, "max_tokens": 24, "logprobs": 1}})["choices"][0]
        assert rollout["token_ids"] == record["completion_ids"]
        assert [c["logprob"] for c in rollout["logprobs"]["content"]] == record["logprobs"]
        assert rollout["weight_versions"][0]["version"] == step
        print("ok: step %d: rollout, scores and generate have the same %d log-probabilities" % (step, len(record["logprobs"])))
    await scorer.aclose()
    for admin in admins:
        await admin.aclose()
    server.is_idle()
    server.stop()
    print("prime-rl's client: all equal")


with tempfile.TemporaryDirectory() as scratch:
    asyncio.run(main(sys.argv[1], sys.argv[2], scratch))
