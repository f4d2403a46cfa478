"""The official `openai` package against `lockstep serve`: what it gets is what `lockstep generate` writes.
Usage: openai_client.py PROGRAM SOURCE_DIR   (pip install openai; without it the script says so and ends with 77)"""

import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serving import Server, generate, write_speaker  # noqa: E402

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
try:
    client.completions.create(model="other", prompt="x")
except openai.NotFoundError as error:
    check("an unknown model is not found", (error.code, error.param), ("model_not_found", "model"))
parts = [{"role": "user", "content": [{"type": "text", "text": "Where does the river go?"}]}]
check("content parts", client.chat.completions.create(**dict(asked, messages=parts)).choices[0].message.content, record["text"])
try:
    parts[0]["content"].append({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}})
    client.chat.completions.create(**dict(asked, messages=parts))
except openai.BadRequestError as error:
    check("images are refused", error.param, "messages[0].content[1]")
server.is_idle()
server.stop()

# A model that calls a tool, and the answer to its call.
with tempfile.TemporaryDirectory() as folder:
    speaker, tools = os.path.join(folder, "speaker"), [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    pieces = ["Well. ", "<tool", "_call>{\"name\": \"f\", ", "\"arguments\": {\"x\": 0.1}}", "</tool_call>"]
    template = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.x }}" \
               "{% endfor %}{% endfor %}"
    body = write_speaker(program, model, speaker, pieces, tools, template)
    body["extra_body"] = {"lockstep": body.pop("lockstep"), "return_token_ids": body.pop("return_token_ids")}
    server = Server(program, speaker)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    choice = client.chat.completions.create(model="tiny", **body).choices[0]
    call, = choice.message.tool_calls
    check("tool calls", (choice.message.content, call.function.name, json.loads(call.function.arguments), choice.finish_reason),
          ("Well. ", "f", {"x": 0.1}, "tool_calls"))
    with client.chat.completions.stream(model="tiny", **body) as stream:
        message = stream.get_final_completion().choices[0].message
    check("tool calls: streamed", (message.content, message.tool_calls[0].function.name, message.tool_calls[0].function.arguments),
          ("Well. ", "f", call.function.arguments))
    more = body["messages"] + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    reply = client.chat.completions.create(model="tiny", messages=more, tools=tools, max_tokens=1, extra_body=body["extra_body"])
    found = server.post("/detokenize", {"tokens": reply.prompt_token_ids})["prompt"]
    check("tool calls: sent back", found, "goWell. <tool_call>0.17")
    server.stop()
print("openai %s: all equal" % openai.__version__)
