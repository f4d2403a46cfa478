"""A calculator as an environment of messages, in Python: `calc(12+7)` in an answer is a call, and its value comes back
as a message of the role tool. Any other answer is the last one.

    lockstep train grpo --set model=MODEL --set run=RUN \
        --set environment=python:examples/environments/calculator_tool.py:Calculator

The right sum earns 1, a wrong one 0, and the use of the calculator 0.1, once. Problems are made here, from their seeds;
with `data=` a problem is a line with `a` and `b`. `one_step` is the same as a function, without anything that is kept.
`python3 calculator_tool.py N` writes N solved conversations instead, as data for `train sft`.
"""

import json
import random
import re
import sys

CALL = re.compile(r"calc\(([0-9]{1,9})([+*-])([0-9]{1,9})\)")
TOOLS = [{"type": "function",
          "function": {"name": "calc", "description": "The value of a sum, difference or product of two whole numbers.",
                       "parameters": {"type": "object", "properties": {"expression": {"type": "string"}},
                                      "required": ["expression"]}}}]


def numbers(problem):
    """The two that are to be added."""
    if "a" in problem:
        return problem["a"], problem["b"]
    draw = random.Random(problem["seed"])
    return draw.randrange(1, 10), draw.randrange(1, 10)


def value(call):
    a, b = int(call[1]), int(call[3])
    return a + b if call[2] == "+" else a * b if call[2] == "*" else a - b


class Calculator:
    tools = TOOLS

    def reset(self, problem):
        self.a, self.b = numbers(problem)
        self.used = False
        return [{"role": "user", "content": f"{self.a}+{self.b}="}]

    def step(self, reply):
        """What is said to an answer, what it earns, and whether it was the last."""
        call = CALL.search(reply)
        if call:
            earned = 0.0 if self.used else 0.1
            self.used = True
            return [{"role": "tool", "content": str(value(call))}], earned, False
        right = re.findall(r"-?[0-9]+", reply)[:1] == [str(self.a + self.b)]
        return [], float(right), True


def one_step(problem, messages, reply):
    """The same without a memory: what was said is in the messages."""
    environment = Calculator()
    first = environment.reset(problem)
    if not messages:
        return first
    environment.used = any(message["role"] == "tool" for message in messages)
    return environment.step(reply)


one_step.tools = TOOLS


def write_traces(n):
    draw = random.Random("traces")
    for _ in range(n):
        a, b = draw.randrange(1, 10), draw.randrange(1, 10)
        said = [("user", f"{a}+{b}="), ("assistant", f"calc({a}+{b})"), ("tool", str(a + b)), ("assistant", str(a + b))]
        print(json.dumps({"messages": [{"role": role, "content": content} for role, content in said], "tools": TOOLS}))


if __name__ == "__main__":
    write_traces(int(sys.argv[1]))
