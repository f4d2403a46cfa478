"""Chat templates rendered by `lockstep chat` and by Hugging Face transformers, compared.

    python3 tests/python/compare_templates.py build/release/lockstep FILE_OR_DIRECTORY...

Needs transformers and jinja2, so no test runs it. Each template is given conversations with and without tools, and says
`equal` (in so many renderings), `refused` (by whom and why) or `DIFFERENT`. The exit code is 1 where one differs.
Rendering by transformers is `render_jinja_template`, which apply_chat_template calls; texts of {% generation %} blocks
are compared as well.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from transformers.utils.chat_template_utils import render_jinja_template

EPOCH = "1735689600"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, \"now\" & <here>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1},
                "fine": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "deep": [1.5, None, True]}},
}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def parts(text):
    return [{"type": "text", "text": text}]


USER = said("user", "  What is 2+3?\nSay it. ")
CHATS = {
    "one": {"messages": [USER]},
    "system": {"messages": [said("system", "Be brief.\n"), USER, said("assistant", "5"), said("user", "Sûr? 'yes' \"no\"")]},
    "answered": {"messages": [USER, said("assistant", " 5.\n"), said("user", "And 1e3?"), said("assistant", "1000")]},
    "thought": {
        "messages": [
            USER,
            said("assistant", "<think>\nadd them\n</think>\n\n5", reasoning_content="add them"),
            said("user", "again"),
            said("assistant", "five", reasoning_content="as before"),
        ]
    },
    "tools": {"messages": [said("system", "Use tools."), said("user", "Weather?")], "tools": [WEATHER]},
    "called": {
        "messages": [
            said("user", "Weather?"),
            said("assistant", "", tool_calls=[CALL]),
            said("tool", '{"degrees": 7.0}', name="get_weather", tool_call_id="call00001"),
            said("assistant", "7 degrees."),
            said("user", "Thanks"),
        ],
        "tools": [WEATHER],
    },
    "parts": {"messages": [said("user", parts("hello")), said("assistant", parts("hi")), said("user", parts("bye"))]},
    "quiet": {"messages": [USER, said("assistant", "5"), USER], "chat_template_kwargs": {"enable_thinking": False}},
}


def joined(chat):
    """The same with content that is a list as one text."""
    text = lambda c: "\n".join(p["text"] for p in c) if isinstance(c, list) else c
    return dict(chat, messages=[dict(m, content=text(m["content"])) for m in chat["messages"]])


def of_transformers(template, chat, prompt):
    """The text and the texts of generation blocks, or why there are none."""
    try:
        texts, spans = render_jinja_template(
            conversations=[chat["messages"]],
            tools=chat.get("tools"),
            chat_template=template,
            return_assistant_tokens_mask="{% generation" in template or "{%- generation" in template,
            add_generation_prompt=prompt,
            **TOKENS,
            **chat.get("chat_template_kwargs", {}),
        )
    except Exception as error:  # whatever a template does
        return None, None, f"{type(error).__name__}: {error}"
    marked = [texts[0][a:b] for a, b in spans[0]] if spans else []
    return texts[0], marked, None


def of_lockstep(program, model, path, chat, options):
    line = json.dumps(chat, ensure_ascii=False) + "\n"
    command = [program, "chat", "--model", model, "--template", str(path), *options]
    run = subprocess.run(command, input=line.encode(), capture_output=True, check=False)
    if run.returncode != 0:
        return None, run.stderr.decode().strip()
    return json.loads(run.stdout), None


def compare(program, model, path):
    """(renderings that are equal, sentences on those that are not)."""
    template = path.read_text(encoding="utf-8")
    equal, both, refused, different = 0, 0, [], []
    for name, chat in CHATS.items():
        for prompt in (True, False):
            options = [] if prompt else ["--no-generation-prompt"]
            theirs, marked, their_error = of_transformers(template, chat, prompt)
            if name == "parts" and (theirs is None or "hello" not in theirs or re.search("['\"]hello['\"]", theirs)):
                # It does not read lists: it fails, drops them or writes them as Python or JSON does.
                theirs, marked, their_error = of_transformers(template, joined(chat), prompt)
            ours, our_error = of_lockstep(program, model, path, chat, options)
            if theirs is None and ours is None:
                both += 1
            elif ours is None:
                refused.append(f"{name}: {our_error}")
            elif theirs != ours["text"]:
                different.append(f"{name}:\n  transformers {theirs if theirs is not None else their_error!r}\n"
                                 f"  lockstep     {ours['text']!r}")
            else:
                equal += 1
            if marked and not prompt and theirs is not None:
                spans, why = of_lockstep(program, model, path, chat, ["--learnt"])
                if spans is None or [s for s in spans["learnt"] if s] != [m for m in marked if m]:
                    different.append(f"{name}: spans {marked!r}, {spans['learnt'] if spans else why!r}")
    return equal, both, refused, different


def main():
    program, files = sys.argv[1], []
    for name in sys.argv[2:]:
        path = pathlib.Path(name)
        files += sorted(path.rglob("*.jinja")) if path.is_dir() else [path]
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    import transformers.utils.chat_template_utils as utils

    class Fixed(utils.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(int(EPOCH), tz)

    utils.datetime = Fixed
    failed = 0
    with tempfile.TemporaryDirectory() as model:
        pathlib.Path(model, "tokenizer_config.json").write_text(json.dumps(TOKENS))
        for path in files:
            equal, both, refused, different = compare(program, model, path)
            verdict = "DIFFERENT" if different else "refused" if refused else "equal"
            failed += verdict == "DIFFERENT"
            print(f"{path.name:50} {verdict:9} {equal:2} equal, {both:2} refused by both, {len(refused):2} by lockstep")
            for sentence in sorted(set(refused)) + different:
                print("   ", sentence)
    print(f"{len(files)} templates, {failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
