"""What clients send and what they look for in answers: ids and text, content parts, tool calls, ends, values that are none.
Usage: serve_fields.py PROGRAM SOURCE_DIR [PART..]"""

import json
import os
import sys
import tempfile
import time

from serving import Server, generate, write_speaker

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "models", "tiny-text")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def same(a, b, what=""):
    if a != b:
        raise AssertionError("%s\n%r\n%r" % (what, a, b))


def said(role, content, **more):
    return dict({"role": role, "content": content}, **more)


# ---- ids and text ----


def texts_become_ids_and_ids_texts(s):
    record, = generate(PROGRAM, TINY, [{"prompt": "The river runs"}], "--max-tokens", "1")
    reply = s.post("/tokenize", {"model": "tiny", "prompt": "The river runs"})
    same(reply, {"count": len(record["prompt_ids"]), "max_model_len": s.get("/v1/models")["data"][0]["max_model_len"],
                 "tokens": record["prompt_ids"], "token_strs": None})
    plain = s.post("/tokenize", {"prompt": "The river runs", "add_special_tokens": False, "return_token_strs": True})
    same(plain["tokens"], record["prompt_ids"][1:])
    same("".join(plain["token_strs"]).replace("\u0120", " "), "The river runs")
    same(s.post("/detokenize", {"tokens": plain["tokens"]}), {"prompt": "The river runs"})
    same(s.post("/detokenize", {"tokens": record["prompt_ids"]}), {"prompt": "<|startoftext|>The river runs"})
    same(s.post("/detokenize", {"tokens": []}), {"prompt": ""})
    same(s.post("/tokenize", {"prompt": "", "add_special_tokens": False})["count"], 0)
    messages = [said("user", "2+2=")]
    chat, = generate(PROGRAM, TINY, [{"messages": messages}], "--max-tokens", "1")
    same(s.post("/tokenize", {"messages": messages})["tokens"], chat["prompt_ids"])
    without = s.post("/tokenize", {"messages": messages, "add_generation_prompt": False})["tokens"]
    same(without, chat["prompt_ids"][: len(without)])
    assert len(without) < len(chat["prompt_ids"])
    same(s.post("/tokenize", {"messages": messages, "add_special_tokens": True})["tokens"], [1] + chat["prompt_ids"])
    long = "a" * (s.get("/v1/models")["data"][0]["max_model_len"] * 8)
    assert s.post("/tokenize", {"prompt": long})["count"] > 4096  # longer than what could be continued
    for path, word, body in (("/tokenize", "prompt", {}), ("/tokenize", "prompt", {"prompt": [1, 2]}),
                             ("/tokenize", "prompt", {"prompt": ["a"]}), ("/tokenize", "max_tokens", {"prompt": "a", "max_tokens": 3}),
                             ("/tokenize", "second", {"prompt": "a", "messages": messages}),
                             ("/detokenize", "tokens", {}), ("/detokenize", "tokens[1]", {"tokens": [1, 512]}),
                             ("/detokenize", "tokens[0]", {"tokens": ["1"]}), ("/detokenize", "text", {"tokens": [1], "text": ""})):
        s.refuses(400, word, path, body)
    s.refuses(405, "POST", "/tokenize", None, method="GET")


def special_tokens_are_added_where_they_are_asked_for(s):
    ids = lambda path, body: s.post(path, dict(body, max_tokens=1, return_token_ids=True))
    text, chat = {"prompt": "2+2="}, {"messages": [said("user", "2+2=")]}
    with_own = ids("/v1/completions", text)["choices"][0]["prompt_token_ids"]
    same(with_own[0], 1)
    same(ids("/v1/completions", dict(text, add_special_tokens=True))["choices"][0]["prompt_token_ids"], with_own)
    same(ids("/v1/completions", dict(text, add_special_tokens=False))["choices"][0]["prompt_token_ids"], with_own[1:])
    # Before and behind the prompt in the body alike.
    same(s.post("/v1/completions", b'{"add_special_tokens":false,"prompt":"2+2=","max_tokens":1,"return_token_ids":true}')
         ["choices"][0]["prompt_token_ids"], with_own[1:])
    own = ids("/v1/chat/completions", chat)["prompt_token_ids"]
    same(ids("/v1/chat/completions", dict(chat, add_special_tokens=False))["prompt_token_ids"], own)
    same(ids("/v1/chat/completions", dict(chat, add_special_tokens=True))["prompt_token_ids"], [1] + own)
    s.refuses(400, "add_special_tokens", "/v1/completions", dict(text, add_special_tokens=1))


def text_is_not_taken_for_ids(s):
    for path, key in (("/inference/v1/generate", "token_ids"), ("/generate", "input_ids"), ("/v1/score", "sequences")):
        for value in ("The river runs", ["The river runs"], [[1, 2], "The river"], [[1, 2.5]], [["1", "2"]]):
            s.refuses(400, key, path, {key: value})
    s.refuses(400, "text", "/generate", {"text": [1, 2, 3]})
    s.refuses(400, "text", "/generate", {"text": [[1, 2, 3]]})


# ---- content parts ----


def parts_of_content_are_text(s):
    ask = lambda content: s.post("/v1/chat/completions", {"messages": [said("user", content)], "max_tokens": 1,
                                                          "return_token_ids": True})["prompt_token_ids"]
    same(ask([{"type": "text", "text": "2+2="}]), [1, 87, 85, 284, 28, 494, 13, 20, 31, 201, 32])
    same(ask([{"type": "text", "text": "2+2="}]), ask("2+2="))
    same(ask(["2+", {"type": "text", "text": "2="}]), ask("2+\n2="))
    for part, word in (({"type": "image_url", "image_url": {"url": "http://x"}}, "'image_url'"),
                       ({"type": "input_audio", "input_audio": {}}, "'input_audio'"), ({"text": "x"}, "'type' is missing")):
        content = [{"type": "text", "text": "2+2="}, part]
        s.refuses(400, "messages[0].content[1]", "/v1/chat/completions", {"messages": [said("user", content)]})
        s.refuses(400, word, "/tokenize", {"messages": [said("user", content)]})


# ---- ends ----


def what_ended_a_completion_is_told(s):
    record, = generate(PROGRAM, TINY, [{"prompt": "The river runs"}], "--seed", "3", "--max-tokens", "48")
    body = {"prompt": "The river runs", "seed": 3, "max_tokens": 48}
    word = record["text"].split()[3]
    for stop in ([word], ["nothing of the kind", word], word):
        choice, = s.post("/v1/completions", dict(body, stop=stop))["choices"]
        same((choice["finish_reason"], choice["stop_reason"]), ("stop", word))
    last = list(s.stream("/v1/completions", dict(body, stop=[word])))[-1]["choices"][0]
    same((last["finish_reason"], last["stop_reason"]), ("stop", word))
    params = {"sampling_seed": 3, "max_new_tokens": 48}
    reply = s.post("/generate", {"text": "The river runs", "sampling_params": dict(params, stop=[word])})
    same(reply["meta_info"]["finish_reason"], {"type": "stop", "matched": word})
    # Inside a token: nothing behind an included stop text, whole and streamed.
    inner = word[:-1]
    cut = record["text"].index(inner) + len(inner)
    choice, = s.post("/v1/completions", dict(body, stop=[inner], include_stop_str_in_output=True))["choices"]
    same((choice["text"], choice["stop_reason"]), (record["text"][:cut], inner))
    events = list(s.stream("/v1/completions", dict(body, stop=[inner], include_stop_str_in_output=True)))
    same("".join(e["choices"][0]["text"] for e in events), record["text"][:cut])
    reply = s.post("/generate", {"text": "The river runs", "sampling_params": dict(params, stop=[inner], no_stop_trim=True)})
    same((reply["text"], reply["meta_info"]["finish_reason"]["matched"]), (record["text"][:cut], inner))
    # Tokens: the request's own are told, the end of the sequence is null (SGLang: its token).
    token = record["completion_ids"][2]
    choice, = s.post("/v1/completions", dict(body, stop_token_ids=[token]))["choices"]
    same((choice["finish_reason"], choice["stop_reason"]), ("stop", token))
    ended = next(r for r in generate(PROGRAM, TINY, [{"prompt": "12+7="}], "--samples", "16", "--max-tokens", "400")
                 if r["finish"] == "stop")
    where = {"lockstep": {"sample": ended["sample"]}, "max_tokens": 400, "seed": 0}
    choice, = s.post("/v1/completions", dict(where, prompt="12+7="))["choices"]
    same((choice["finish_reason"], choice["stop_reason"]), ("stop", None))
    choice, = s.post("/inference/v1/generate", {"token_ids": ended["prompt_ids"], "lockstep": where["lockstep"],
                                                "sampling_params": {"seed": 0, "max_tokens": 400}})["choices"]
    same((choice["finish_reason"], choice["stop_reason"]), ("stop", None))
    reply = s.post("/generate", {"input_ids": ended["prompt_ids"], "lockstep": where["lockstep"],
                                 "sampling_params": {"sampling_seed": 0, "max_new_tokens": 400}})
    same(reply["meta_info"]["finish_reason"], {"type": "stop", "matched": ended["completion_ids"][-1]})


def long_stop_texts_hold_streams_back(s):
    """A stop text that is longer than what a stream decodes again: all text is told, and no other."""
    body = {"prompt": "The river runs", "seed": 6, "max_tokens": 700, "ignore_eos": True, "stop": ["never " * 300]}
    whole, = s.post("/v1/completions", body)["choices"]
    same("".join(e["choices"][0]["text"] for e in s.stream("/v1/completions", body)), whole["text"])


# ---- values ----


def values_that_are_none_in_float32_are_refused(s):
    ask = lambda more: dict({"prompt": [5, 6], "max_tokens": 4, "seed": 1}, **more)
    for field, values in (("temperature", (1e-38, 1e-45, 1e-300, 1e-25, 1e38, 1e300)), ("top_p", (1e-46, 1e-300)),
                          ("min_p", (1e-46, 1e-300)), ("repetition_penalty", (1e-45, 1e-38, 1e-300, 1e-9, 1e300)),
                          ("presence_penalty", (1e-300, -1e-46, 1e300, -1e300)),
                          ("frequency_penalty", (1e-300, -1e-46, 1e300, -1e300))):
        for value in values:
            s.refuses(400, "request: " + field, "/v1/completions", ask({field: value}))
            s.refuses(400, field, "/generate", {"input_ids": [5, 6], "sampling_params": {field: value}})
            s.refuses(400, field, "/inference/v1/generate", {"token_ids": [5, 6], "sampling_params": {field: value}})
    # What is small and large, and is taken, is answered: alone and with each other.
    edges = {"temperature": (0, 1e-20, 1e-6, 1e6), "top_p": (2e-38, 1), "min_p": (0, 2e-38, 1),
             "repetition_penalty": (1e-6, 1e6), "presence_penalty": (-1e6, 2e-38, 1e6), "frequency_penalty": (-1e6, 1e6)}
    for field, values in edges.items():
        for value in values:
            for more in ({}, {"temperature": 1e-20}, {"temperature": 1e-20, "repetition_penalty": 1e-6, "frequency_penalty": -1e6}):
                s.post("/v1/completions", ask(dict(more, **{field: value})))


def other_models_are_not_found(s):
    for path, body in (("/v1/completions", {"prompt": [5]}), ("/v1/chat/completions", {"messages": [said("user", "x")]}),
                       ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]}), ("/v1/score", {"sequences": [[5, 6]]}),
                       ("/inference/v1/generate", {"token_ids": [5]})):
        status, _, reply = s.request("POST", path, dict(body, model="other"))
        same((status, reply["error"]["type"], reply["error"]["param"], reply["error"]["code"]),
             (404, "not_found_error", "model", "model_not_found"), path)
        assert "'other' does not exist" in reply["error"]["message"]
    status, _, reply = s.request("POST", "/v1/completions", {"prompt": [5], "temperature": -1})
    same((status, reply["error"]["param"], reply["error"]["code"]), (400, "temperature", 400))


def what_cannot_be_forced_is_refused_by_name(s):
    ask = lambda more: dict({"messages": [said("user", "x")], "tools": TOOLS, "max_tokens": 1}, **more)
    for word, more in (("response_format.type", {"response_format": {"type": "json_object"}}),
                       ("'json_schema'", {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}),
                       ("tool_choice", {"tool_choice": "required"}), ("tools", {"tools": {}}),
                       ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
                       ("continue_final_message", {"continue_final_message": True})):
        s.refuses(400, word, "/v1/chat/completions", ask(more))
    for choice in ("none", "auto", None):
        s.post("/v1/chat/completions", ask({"tool_choice": choice, "response_format": {"type": "text"}}))


def one_server():
    s = Server(PROGRAM, TINY, "--batch", "8")
    for part in (texts_become_ids_and_ids_texts, special_tokens_are_added_where_they_are_asked_for, text_is_not_taken_for_ids,
                 parts_of_content_are_text, what_ended_a_completion_is_told, long_stop_texts_hold_streams_back,
                 values_that_are_none_in_float32_are_refused, other_models_are_not_found,
                 what_cannot_be_forced_is_refused_by_name):
        part(s)
    s.is_idle()
    s.stop()
    more_than_the_pools_hold_is_the_clients()


def more_than_the_pools_hold_is_the_clients():
    s = Server(PROGRAM, TINY, "--pages", "4")
    s.refuses(400, "KV pages", "/v1/completions", {"prompt": [5] * 900, "max_tokens": 2})
    s.post("/v1/completions", {"prompt": [5] * 9, "max_tokens": 2})
    s.stop()


# ---- tool calls ----


def streamed(s, body):
    """Content, calls and end of a streamed chat, put together as clients do."""
    content, calls, finish = "", {}, None
    for event in s.stream("/v1/chat/completions", body):
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                known = calls.setdefault(call["index"], dict(call, function=dict(call["function"], arguments="")))
                known["function"]["arguments"] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return content, [{k: v for k, v in calls[i].items() if k != "index"} for i in sorted(calls)], finish


def speaks(folder, name, pieces, mark, content, calls, options=(), special=(), more=None):
    body = dict(write_speaker(PROGRAM, TINY, os.path.join(folder, name), pieces, TOOLS, "{{ messages[0].content }}{# %s #}" % mark, special),
                **(more or {}))
    s = Server(PROGRAM, os.path.join(folder, name), "--batch", "4", "--stream-ms", "0", *options)
    reply, = s.post("/v1/chat/completions", body)["choices"]
    message = reply["message"]
    same([(c["type"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])],
         [("function", n, a) for n, a in calls], name)
    same((message["content"], reply["finish_reason"]), (content, "tool_calls" if calls else "length"), name)
    ids = [c["id"] for c in message.get("tool_calls", [])]
    same(len(set(ids)), len(calls))
    told = streamed(s, body)
    same(told[0], content or "", name)
    same([(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in told[1]], calls, name)
    same(told[2], reply["finish_reason"], name)
    s.stop()
    return ids


def calls_are_told_apart(folder):
    hermes = ["I see", ".\n", "<tool", "_call>\n{\"name\": \"f\",", " \"arguments\": {\"x\": 0.1}}", "</tool_call>", "\n<tool_call>",
              "{\"name\":\"g\",\"arguments\":{}}</tool_call>"]
    both = [("f", {"x": 0.1}), ("g", {})]
    speaks(folder, "hermes", hermes, "<tool_call>", "I see.\n", both)
    speaks(folder, "one", hermes, "<tool_call>", "I see.\n", both[:1], more={"parallel_tool_calls": False})
    speaks(folder, "off", hermes, "<tool_call>", "".join(hermes), [], options=("--tool-call-parser", "off"))
    speaks(folder, "none", hermes, "<tool_call>", "".join(hermes), [], more={"tool_choice": "none"})
    speaks(folder, "without", hermes, "<tool_call>", "".join(hermes), [], more={"tools": []})
    speaks(folder, "named", hermes, "", "I see.\n", both, options=("--tool-call-parser", "hermes"))
    speaks(folder, "cut", hermes[:-3], "<tool_call>", "I see.\n", both[:1])
    speaks(folder, "broken", hermes[:-4], "<tool_call>", "".join(hermes[:-4]), [])
    speaks(folder, "llama", ["{\"name\": ", "\"f\", \"parameters\": {", "\"x\": 0.1}}"], "<|python_tag|>", None, both[:1])
    speaks(folder, "no llama", ["{\"other\": ", "\"f\"", "}"], "<|python_tag|>", "{\"other\": \"f\"}", [])
    ids = speaks(folder, "mistral", ["[TOOL_CALLS]", "[{\"name\": \"f\", ", "\"arguments\": {\"x\":0.1}},{\"name\":\"g\",",
                                     "\"arguments\":{}}]"], "[TOOL_CALLS]", None, both, special=("[TOOL_CALLS]",))
    assert all(len(i) == 9 and i.isalnum() for i in ids), ids
    speaks(folder, "jamba", ["So: ", "<tool_calls>", "[{\"name\": \"f\", \"arguments\": ", "{\"x\": 0.1}}]", "</tool_calls>"],
           "<tool_calls>", "So: ", both[:1], special=("<tool_calls>", "</tool_calls>"))


def main():
    with tempfile.TemporaryDirectory() as folder:
        parts = {"fields": one_server, "calls": lambda: calls_are_told_apart(folder)}
        for name in sys.argv[3:] or parts:
            begun = time.time()
            parts[name]()
            print("%s: ok, %.1f s" % (name, time.time() - begun), flush=True)


main()
