"""Rewards of answers to sums, in both forms that docs/guide/python-functions.md has.

    lockstep train grpo --set model=MODEL --set run=RUN --set data=sums.jsonl \
        --set reward=python:examples/rewards.py:right
"""

import re


def has_number(completions, **kwargs):
    """1 for every answer with a digit. Answers are texts, or lists of messages where the data has messages."""
    contents = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [1.0 if re.search(r"\d", content) else 0.0 for content in contents]


def right(prompt, completion, answer):
    """Whether the one answer to one prompt is the right one."""
    content = completion if isinstance(completion, str) else completion[0]["content"]
    return float(content.strip() == answer)
