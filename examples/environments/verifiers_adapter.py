"""An environment of Prime Intellect's `verifiers` (the classes of its releases 0.1 to 0.3), driven unchanged.

    lockstep train grpo --set model=MODEL --set run=RUN \
        --set environment_command='python3 examples/environments/verifiers_adapter.py ENVIRONMENT'

needs `pip install verifiers==0.3.1` and the environment's own package. Its `rollout` runs as it is, with a client that
gives back what Lockstep's model has said so far and stops it where nothing has been said yet; so the environment must do
the same each time it is asked the same. Rewards are its rubric's. Problems are rows of its data sets, by their number.

Messages become text by --turn, and --answer begins what the model says; both take \\n. Tool calls are what stands
between <tool_call> and </tool_call> as {"name", "arguments"}.
"""

import argparse
import asyncio
import inspect
import json
import re
import types

import verifiers
from openai.types.chat import ChatCompletion
from openai.types.completion import Completion

from protocol import serve

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)


class Waiting(BaseException):
    """Nothing has been said to these messages yet. No Exception: environments catch those."""

    def __init__(self, messages):
        super().__init__()
        self.messages = messages


def tool_calls(text):
    calls = []
    for i, found in enumerate(CALL.findall(text)):
        call = json.loads(found)
        function = {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))}
        calls.append({"id": f"call{i:05}", "type": "function", "function": function})
    return calls


class Said:
    """A client whose model says what was said, in this order."""

    def __init__(self, said):
        self.said = list(said)
        self.base_url = "none"
        self.completions = types.SimpleNamespace(create=self.complete)
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.chat_once))

    def take(self, so_far):
        if not self.said:
            raise Waiting(so_far)
        return self.said.pop(0)

    async def chat_once(self, messages, tools=None, **_):
        so_far = list(messages)
        text = self.take(so_far)
        message = {"role": "assistant", "content": text}
        if tools and (calls := tool_calls(text)):
            message |= {"content": CALL.sub("", text), "tool_calls": calls}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return ChatCompletion.model_validate(
            {"id": "0", "object": "chat.completion", "created": 0, "model": "lockstep", "choices": [choice]}
        )

    async def complete(self, prompt, **_):
        choice = {"index": 0, "finish_reason": "stop", "text": self.take(prompt), "logprobs": None}
        return Completion.model_validate(
            {"id": "0", "object": "text_completion", "created": 0, "model": "lockstep", "choices": [choice]}
        )


def newer_client(said):
    """The same for releases whose clients are of a class `Client` and answer with `Response`."""
    from verifiers.types import Response, ResponseMessage, ToolCall

    class Client(verifiers.Client):
        def setup_client(self, config): ...
        async def to_native_tool(self, tool): ...
        async def to_native_prompt(self, messages): ...
        async def get_native_response(self, prompt, model, sampling_args, tools=None, **_): ...
        async def raise_from_native_response(self, response): ...
        async def from_native_response(self, response): ...
        async def close(self): ...

        async def get_response(self, prompt, model, sampling_args, tools=None, **_):
            if isinstance(prompt, str):
                raise ValueError("environments of plain completions are not driven in these releases")
            text = said.take([plain(m) for m in prompt])
            calls = tool_calls(text) if tools else []
            message = ResponseMessage(
                content=CALL.sub("", text) if calls else text, finish_reason="tool_calls" if calls else "stop",
                is_truncated=False,
                tool_calls=[ToolCall(id=c["id"], name=c["function"]["name"], arguments=c["function"]["arguments"])
                            for c in calls] or None,
            )
            return Response(id="0", created=0, model=model, message=message)

    return Client(None)


def plain(message):
    return message if isinstance(message, dict) else message.model_dump()


class Adapter:
    def __init__(self, options):
        self.turn = options.turn.replace("\\n", "\n")
        self.answer = options.answer.replace("\\n", "\n")
        self.environment = verifiers.load_environment(options.environment, **json.loads(options.arguments))
        self.rows = {"train": self.environment.get_dataset(), "held-out": self.environment.get_eval_dataset()}

    def row(self, split, index):
        rows = self.rows[split]
        return rows[index % len(rows)]

    def write(self, messages):
        if isinstance(messages, str):
            return messages
        lines = [self.turn.format(role=m["role"], content=m.get("content") or "") for m in messages]
        return "".join(lines) + self.answer

    def reset(self, split, index):
        return self.write(self.row(split, index)["prompt"])

    async def play(self, row, said):
        """What the environment says to what was said, or its reward."""
        prompt, answer, info = row["prompt"], row.get("answer", ""), row.get("info") or {}
        task = row.get("task", "default")
        client = Said(said)
        if "input" in inspect.signature(self.environment.rollout).parameters:
            return await self.play_newer(row, client)
        try:
            completion, state = await self.environment.rollout(client, "lockstep", prompt, answer, task, info)
        except Waiting as waiting:
            return {"observation": self.unsaid(waiting.messages)}
        score = await self.environment.rubric.score_rollout(prompt, completion, answer, state, task=task, info=info)
        return {"done": True, "reward": float(score.reward)}

    async def play_newer(self, row, said):
        try:
            state = await self.environment.rollout({**row, "example_id": row.get("example_id", 0)}, newer_client(said), "lockstep")
        except Waiting as waiting:
            return {"observation": self.unsaid(waiting.messages)}
        if state.get("error") is not None:
            raise state["error"]
        await self.environment.rubric.score_rollout(state)
        return {"done": True, "reward": float(state["reward"])}

    def unsaid(self, messages):
        """What came behind the model's last words."""
        if isinstance(messages, str):
            raise ValueError("environments of plain completions have one turn here")
        last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
        return "\n" + self.write(messages[last + 1 :])

    def step(self, item, turns, ended):
        split, index = item["problem"].split("/")[1:]
        said = [turn["completion"] for turn in turns]
        answer = asyncio.run(self.play(self.row(split, int(index)), said))
        # The rubric judges whole rollouts: one that Lockstep cut short has earned nothing.
        return {"done": True, "reward": 0.0} if ended and "reward" not in answer else answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("environment", help="name, as verifiers.load_environment takes it")
    parser.add_argument("--arguments", default="{}", help="its arguments as a JSON object")
    parser.add_argument("--turn", default="{role}: {content}\\n", help="a message as text")
    parser.add_argument("--answer", default="assistant:", help="what begins the model's words")
    adapter = Adapter(parser.parse_args())
    serve(adapter.reset, adapter.step)


if __name__ == "__main__":
    main()
