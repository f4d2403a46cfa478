"""Model directories whose chat template `lockstep chat` and Hugging Face transformers must find and render alike.

    python3 tests/python/compare_chats.py build/release/lockstep

Needs transformers and jinja2, so no test runs it; without them it says so and exits with 77. Each case is a directory of
files; the reference is AutoTokenizer.from_pretrained(..).apply_chat_template of the same directory. Cases are also in
tests/text/test_template.c and tests/text/test_chat_parts.c, with what came out. The exit code is 1 where one differs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

MODEL = {"type": "WordLevel", "vocab": {"<unk>": 0, "x": 1}, "unk_token": "<unk>"}
TOKENIZER = {"version": "1.0", "added_tokens": [], "model": MODEL}
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
NAMES = (
    "{{ image_token }}{{ sep }}{{ audio_token }}{{ eos_token }}"
    "{{ add_bos_token is defined }}{{ other_token is defined }}"
)
SHOW = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{{ 'tool_calls' in m }}{{ m.content is defined }}{% endfor %}"
)
MACRO = (
    "{% macro w(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}"
    "{% for m in messages %}{{ w(m.content) }}{% endfor %}"
    "{% set t %}{% generation %}!{% endgeneration %}{% endset %}{{ t }}"
)
TALK = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": None}]}
TOOLS = {"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
CASES = [
    ("null members", {"chat_template.jinja": SHOW}, TALK),
    ("blocks in macros", {"chat_template.jinja": MACRO}, TOOLS),
    ("a named file", {"chat_template.jinja": "p", "additional_chat_templates/tool_use.jinja": "t{{ tools }}"}, TOOLS),
    ("a named file, no tools", {"chat_template.jinja": "p", "additional_chat_templates/tool_use.jinja": "t"}, TALK),
    ("a default beside", {"chat_template.jinja": "p", "additional_chat_templates/default.jinja": "d"}, TALK),
    ("tokens with names", {"chat_template.jinja": NAMES, "tokenizer_config.json": {
        "image_token": "<i>", "add_bos_token": True, "other_token": None, "eos_token": "</s>",
        "audio_token": {"__type": "AddedToken", "content": "<a>", "lstrip": False, "normalized": False, "rstrip": False,
                        "single_word": False, "special": True},
        "extra_special_tokens": {"sep": "<|>"}}}, TALK),
]


def main():
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("skipped: transformers is not here")
        return 77
    bad = 0
    for name, files, line in CASES:
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            given = {"tokenizer.json": TOKENIZER, **files}
            given["tokenizer_config.json"] = {**CLASS, **given.get("tokenizer_config.json", {})}
            for path, content in given.items():
                (root / path).parent.mkdir(exist_ok=True)
                (root / path).write_text(content if isinstance(content, str) else json.dumps(content))
            wanted = AutoTokenizer.from_pretrained(directory).apply_chat_template(
                line["messages"], tools=line.get("tools"), tokenize=False, add_generation_prompt=True)
            got = subprocess.run([sys.argv[1], "chat", "--model", directory], input=json.dumps(line) + "\n",
                                 capture_output=True, text=True, check=False)
            text = json.loads(got.stdout)["text"] if got.returncode == 0 else got.stderr
        print(f"{name:24} {'equal' if text == wanted else f'DIFFERENT: {text!r}, transformers {wanted!r}'}")
        bad += text != wanted
    return 1 if bad else 0


sys.exit(main())
