"""The official `openai` package against `lockstep serve`: what it gets is what `lockstep generate` writes.
Usage: openai_client.py PROGRAM SOURCE_DIR   (pip install openai; without it the script says so and ends with 77)"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate  # noqa: E402

try:
    import openai
except ImportError:
    print("skipped: the package openai is not installed")
    sys.exit(77)

program, source = sys.argv[1], sys.argv[2]
model = os.path.join(source, "models", "tiny-text")
server = Server(program, model)
client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")


def check(what, found, expected):
    assert found == expected, (what, found, expected)
    print("ok: " + what)


check("models", [m.id for m in client.models.list()], ["tiny"])
records = generate(program, model, [{"prompt": "The river runs"}], "--samples", "3", "--max-tokens", "24", "--seed", "7")
asked = dict(model="tiny", prompt="The river runs", n=3, max_tokens=24, seed=7, logprobs=1)
reply = client.completions.create(**asked, extra_body={"return_token_ids": True, "lockstep": True})
check("n completions: texts", [c.text for c in reply.choices], [r["text"] for r in records])
check("tokens", [c.token_ids for c in reply.choices], [r["completion_ids"] for r in records])
check("log-probabilities", [c.logprobs.token_logprobs for c in reply.choices], [r["logprobs"] for r in records])
check("bits", [c.lockstep["logprob_bits"] for c in reply.choices], [r["logprob_bits"] for r in records])
texts, finish = {}, {}
for event in client.completions.create(**asked, stream=True):
    for c in event.choices:
        texts[c.index] = texts.get(c.index, "") + c.text
        finish[c.index] = c.finish_reason or finish.get(c.index)
check("streamed", [texts[i] for i in range(3)], [r["text"] for r in records])
check("ends", [finish[i] for i in range(3)], [r["finish"] for r in records])
stopped, = generate(program, model, [{"prompt": "The river runs"}], "--max-tokens", "48", "--seed", "3", "--stop", "and")
reply = client.completions.create(model="tiny", prompt="The river runs", max_tokens=48, seed=3, stop=["and"])
check("stop", (reply.choices[0].text, reply.choices[0].finish_reason),
      (stopped["text"][: stopped["text"].index("and")], "stop"))
messages = [{"role": "user", "content": "Where does the river go?"}]
record, = generate(program, model, [{"messages": messages}], "--seed", "5", "--max-tokens", "20")
asked = dict(model="tiny", messages=messages, seed=5, max_tokens=20)
reply = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
check("chat", reply.choices[0].message.content, record["text"])
check("chat: log-probabilities", [c.logprob for c in reply.choices[0].logprobs.content], record["logprobs"])
chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
check("chat: streamed", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), record["text"])
check("chat: usage", chunks[-1].usage.completion_tokens, len(record["completion_ids"]))
try:
    client.completions.create(model="tiny", prompt="x", logit_bias={"5": 3})
except openai.BadRequestError as error:
    check("refusals are the client's own errors", "logit_bias" in str(error), True)
server.is_idle()
server.stop()
print("openai %s: all equal" % openai.__version__)
