"""Reward functions and environments of `lockstep train`, called in processes of their own.

The program carries this text and gives it to python3. It talks over the pipes that were standard input and output, one
JSON object a line each way (docs/guide/python-functions.md). Two parts:

- the dispatcher, which never runs foreign code: it reads items, gives them to workers, one call at a time each, kills
  those that are late, starts others for those that died, and writes one answer for every item;
- workers, forked from it, which import the user's module and call it. They have pipes of their own, so that nothing
  that a function prints can be taken for an answer.

Needs the standard library of Python 3.8 alone. What a call gets does not depend on the number of workers.
"""

import asyncio
import collections
import importlib
import importlib.util
import inspect
import json
import math
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
import zlib

START_SECONDS = 10.0  # an import may always take so long
STARTS_MAX = 3  # workers in a row that die before they are ready
ANSWER_BYTES_MAX = 65000
EPISODES_MAX = 4096  # environments that a worker keeps
WORDS_MAX = 150  # of a reason


class Refusal(Exception):
    """A sentence for the user."""


def one_line(text, limit=WORDS_MAX):
    text = " ".join(str(text).encode(errors="replace").decode().split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def dump(value):
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()


def check_numbers(value):
    """Whole numbers beyond 64 bits are JSON, and nobody at the other end reads them."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise Refusal(f"the answer has a whole number of more than 64 bits: {one_line(value, 40)}")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        check_numbers(part)


# ---- what the user names ----


def load_file(path):
    name = os.path.splitext(os.path.basename(path))[0]
    found = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # as an import has it: classes are found by it
    found.loader.exec_module(module)
    return module


def load(spec):
    """The object of "module:name", "package.module:name" or "path/file.py:name"."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise Refusal(f"'{one_line(spec)}' is not MODULE:NAME or FILE.py:NAME")
    is_file = place.endswith(".py")
    if is_file and not os.path.isfile(place):
        raise Refusal(f"{place} is no file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(place)) if is_file else os.getcwd())
    try:
        value = load_file(place) if is_file else importlib.import_module(place)
    except BaseException as error:
        traceback.print_exc()
        raise Refusal(f"{place} cannot be imported: {tell(error)}") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise Refusal(f"{place} has no '{name}'{hint(value, part)}")
        value = getattr(value, part)
    return value


def hint(module, name):
    import difflib

    near = difflib.get_close_matches(name, [n for n in dir(module) if not n.startswith("_")], 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def tell(error):
    """"ValueError: words (rewards.py, line 7)"."""
    own = tell.__code__.co_filename
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != own and f.filename[0] != "<"]
    words = one_line(error)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{place}"


def parameters(function):
    """Names of the parameters, those that must be given, and whether any name is taken."""
    names, needed, takes_all = [], [], False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            takes_all = True
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            names.append(p.name)
            if p.default is p.empty:
                needed.append(p.name)
        elif p.kind is p.POSITIONAL_ONLY:
            raise Refusal(f"the parameter '{p.name}' has to be given by position; parameters are chosen by name")
    return names, needed, takes_all


def resolve(value):
    """What an async function promises."""

    async def wait():
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def number(value):
    """A reward as a float; a Refusal says what it is instead."""
    if value is None:
        raise Refusal("the reward is None, expected a number")
    if isinstance(value, (str, bytes, list, tuple, dict)):
        raise Refusal(f"the reward is {one_line(repr(value), 60)}, expected a number")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise Refusal(f"the reward is {one_line(repr(value), 60)}, expected a number") from None
    if not math.isfinite(result):
        raise Refusal(f"the reward is {result}, expected a finite number")
    return result


# ---- rewards ----


class Reward:
    """A function of all samples of a problem, f(completions, prompts, **columns), or of one, f(completion, ..)."""

    OF_GROUPS = ("completions", "prompts", "completion_ids", "completion_texts", "prompt_texts")
    OF_SAMPLES = ("completion", "prompt", "completion_ids", "completion_text", "prompt_text", "answer")

    def __init__(self, spec, may_pass):
        self.may_pass = may_pass  # one of several: None gives no reward, and is no failure
        function = load(spec)
        if inspect.isclass(function):
            function = function()
        if not callable(function):
            raise Refusal(f"{spec} is no function: {one_line(repr(function), 60)}")
        self.function, self.name = function, spec.rpartition(":")[2]
        self.names, self.needed, self.takes_all = parameters(function)
        if "completion" in self.names or "completion_text" in self.names:
            self.form = "sample"
        elif self.takes_all or any(name in self.names for name in self.OF_GROUPS):
            self.form = "group"
        else:
            raise Refusal(f"{self.name}({', '.join(self.names)}) has neither a parameter 'completions', all samples of "
                          "a problem, nor 'completion', one")

    @staticmethod
    def columns(item):
        """Members of the line that the problem came from, as they are there."""
        data = item.get("data") or {}
        out = {key: value for key, value in data.items() if key not in ("prompt", "completion", "completion_ids")}
        if "prompt_messages" in item:
            out.pop("messages", None)
        if "answer" in item:
            out.setdefault("answer", item["answer"])
        return out

    def arguments(self, have):
        missing = [name for name in self.needed if name not in have]
        if missing:
            raise Refusal(f"{self.name}() needs '{missing[0]}', which the problem does not have")
        return have if self.takes_all else {name: have[name] for name in self.names if name in have}

    def check(self, item):
        """A line of data, before anything is drawn: a Refusal where it lacks what the function needs."""
        names = self.OF_GROUPS if self.form == "group" else self.OF_SAMPLES
        self.arguments(dict(dict.fromkeys(names), **self.columns(item)))
        return [{"done": False}]

    def call(self, items):
        if items[0].get("op") == "check":
            return self.check(items[0])
        prompts = [item.get("prompt_messages", item.get("prompt")) for item in items]
        completions = [item.get("completion_messages", item.get("completion")) for item in items]
        if self.form == "group":
            columns = [self.columns(item) for item in items]
            have = {key: [of_item[key] for of_item in columns] for key in columns[0]}
            have.update(prompts=prompts, completions=completions, prompt_texts=[i.get("prompt") for i in items],
                        completion_texts=[i.get("completion") for i in items],
                        completion_ids=[i.get("completion_ids") for i in items])
            result = resolve(self.function(**self.arguments(have)))
            try:
                rewards = list(result)
            except TypeError:
                words = f"{self.name}() returned {one_line(repr(result), 60)}, expected a list of numbers"
                raise Refusal(words) from None
            if len(rewards) != len(items):
                raise Refusal(f"{self.name}() returned {len(rewards)} rewards for {len(items)} completions")
        else:
            have = dict(self.columns(items[0]), prompt=prompts[0], completion=completions[0],
                        prompt_text=items[0].get("prompt"), completion_text=items[0].get("completion"),
                        completion_ids=items[0].get("completion_ids"))
            have.setdefault("answer", None)
            rewards = [resolve(self.function(**self.arguments(have)))]
        answers = []
        for reward in rewards:
            try:
                answers.append({"reward": None if reward is None and self.may_pass else number(reward)})
            except Refusal as refusal:
                answers.append({"error": str(refusal)})
        return answers


# ---- environments ----


def conversation(item, turns):
    """All that was said before the environment's word, as messages."""
    out = list(item.get("prompt_messages") or [{"role": "user", "content": item.get("prompt", "")}])
    for turn in turns:
        out.append({"role": "assistant", "content": turn["completion"]})
        if "messages" in turn:
            out += turn["messages"]
        elif "observation" in turn:
            out.append({"role": "user", "content": turn["observation"]})
    return out


def said(value):
    """Messages of an environment as a member of an answer."""
    if value is None or (isinstance(value, (list, tuple)) and len(value) == 0):
        return {}
    if isinstance(value, str):
        return {"observation": value}
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, (list, tuple)):
        raise Refusal(f"messages: {one_line(repr(value), 60)} is no list of messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refusal(f"messages[{i}]: {one_line(repr(message), 60)} is no message with a role")
    return {"messages": list(messages)}


def problem_of(item):
    """What reset gets."""
    problem = dict(item.get("data") or {})
    problem["id"] = item["problem"]
    problem["seed"] = zlib.crc32(item["problem"].encode())
    if isinstance(problem.get("prompt"), list):
        problem.setdefault("messages", problem["prompt"])
    if "answer" in item:
        problem.setdefault("answer", item["answer"])
    if "data" not in item:
        problem["split"], index = item["problem"].split("/")[-2:]
        problem["index"] = int(index)
    return problem


def given(name, function, have):
    """A call with those of the arguments that the function names; a first parameter of another name is the reply."""
    names, needed, takes_all = parameters(function)
    if names and names[0] not in have:
        have = dict(have, **{names[0]: have.get("reply")})
    missing = [n for n in needed if n not in have]
    if missing:
        raise Refusal(f"{name}() needs '{missing[0]}'; there are {', '.join(have)}")
    return resolve(function(**(have if takes_all else {n: have[n] for n in names if n in have})))


def step_answer(name, result):
    if isinstance(result, dict):
        unknown = [key for key in result if key not in ("messages", "reward", "done")]
        if unknown:
            raise Refusal(f"{name}() returned a dict with '{one_line(unknown[0], 40)}'; messages, reward and done are "
                          "known")
        result = (result.get("messages"), result.get("reward"), result.get("done", False))
    if not isinstance(result, tuple) or len(result) != 3:
        raise Refusal(f"{name}() returned {one_line(repr(result), 60)}, expected (messages, reward, done)")
    messages, reward, done = result
    answer = {"done": bool(done)}
    if reward is not None:
        answer["reward"] = number(reward)
    answer.update(said(messages))
    if not done and len(said(messages)) == 0:
        raise Refusal(f"{name}() said nothing, and the episode is not done")
    return answer


class Environment:
    """A class with reset(problem) and step(messages or reply), an instance an episode; or one function of a step."""

    def __init__(self, spec):
        self.made, self.name, self.form = load(spec), spec.rpartition(":")[2], "environment"
        self.is_class = inspect.isclass(self.made)
        self.live = collections.OrderedDict()  # episode: (instance, completions so far)
        if self.is_class:
            for method in ("reset", "step"):
                if not callable(getattr(self.made, method, None)):
                    raise Refusal(f"the class {self.name} has no method {method}")
        elif not callable(self.made):
            raise Refusal(f"{spec} is neither a class nor a function: {one_line(repr(self.made), 60)}")

    def begin(self, item):
        instance = self.made()
        return instance, given(f"{self.name}.reset", instance.reset, {"problem": problem_of(item)})

    def arguments(self, item, turns):
        return {"messages": conversation(item, turns), "reply": turns[-1]["completion"] if turns else None,
                "problem": problem_of(item), "turn": len(turns)}

    def reset(self, item):
        if self.is_class:
            instance, first = self.begin(item)
            tools = getattr(instance, "tools", None)
        elif "data" in item:
            return {"done": False}  # a function has no beginning of its own: the line's prompt counts
        else:
            have = dict(self.arguments(item, []), messages=[])
            first, tools = given(self.name, self.made, have), getattr(self.made, "tools", None)
            first = first[0] if isinstance(first, tuple) else first
        answer = said(first)
        if "observation" in answer:
            return {"prompt": answer["observation"]}
        if not answer:
            return {"done": False}
        if isinstance(tools, (list, tuple)):
            answer["tools"] = list(tools)
        return answer

    def instance_of(self, item, turns):
        """The one that has seen these turns but the last, perhaps made again."""
        before = [turn["completion"] for turn in turns[:-1]]
        instance, seen = self.live.pop(item["episode"], (None, None))
        if instance is None or seen != before:
            instance, _ = self.begin(item)
            for k in range(1, len(turns)):
                given(f"{self.name}.step", instance.step, self.arguments(item, turns[:k]))
        return instance

    def step(self, item):
        turns, ends = item["turns"], item["op"] == "end"
        have = self.arguments(item, turns)
        name = self.name
        if self.is_class:
            instance = self.instance_of(item, turns)
            if ends and callable(getattr(instance, "end", None)):
                reward = given(f"{name}.end", instance.end, have)
                return {"done": True} if reward is None else {"reward": number(reward)}
            answer = step_answer(f"{name}.step", given(f"{name}.step", instance.step, have))
            if not ends and not answer["done"]:
                self.live[item["episode"]] = (instance, [turn["completion"] for turn in turns])
                while len(self.live) > EPISODES_MAX:
                    self.live.popitem(last=False)
        else:
            answer = step_answer(name, given(name, self.made, have))
        if ends:  # nobody hears what it says to this
            answer = {key: value for key, value in answer.items() if key == "reward"} or {"done": True}
        return answer

    def call(self, items):
        return [self.reset(items[0]) if items[0]["op"] == "reset" else self.step(items[0])]


# ---- a worker ----


def restore_output(out):
    """Standard output is the file, whatever the last call did to it."""
    os.dup2(out, 1)
    if sys.stdout is None or sys.stdout.closed:
        sys.stdout = open(1, "w", closefd=False)


def printed(out):
    """What a call wrote to standard output, which is a file of no name."""
    try:
        sys.stdout.flush()
        size = os.lseek(out, 0, os.SEEK_END)
        if size == 0:
            return None
        os.lseek(out, 0, os.SEEK_SET)
        text = os.read(out, 4096)
        os.ftruncate(out, 0)
        os.lseek(out, 0, os.SEEK_SET)
        os.write(2, text)
        return one_line(text.decode(errors="replace"), 80)
    except (OSError, ValueError, AttributeError):
        return None  # it closed or replaced its own output


def work(spec, kind, source, sink):
    """Never returns."""
    status = 0
    try:
        out = tempfile.TemporaryFile()
        restore_output(out.fileno())
        sys.argv = [spec]
        reader = os.fdopen(source, "rb")
        try:
            target = Environment(spec) if kind == "environment" else Reward(spec, kind == "part")
        except BaseException as error:
            words = str(error) if isinstance(error, Refusal) else tell(error)
            os.write(sink, dump({"fatal": one_line(words, 180)}))
            return
        os.write(sink, dump({"ready": target.form, "printed": printed(out.fileno())}))
        for line in reader:
            items = json.loads(line)
            restore_output(out.fileno())
            try:
                reply = {"answers": target.call(items)}
            except Refusal as error:
                reply = {"refused": one_line(error, 180)}
            except BaseException as error:
                traceback.print_exc()
                reply = {"raised": one_line(tell(error), 180)}
            reply["printed"] = printed(out.fileno())
            try:
                check_numbers(reply)
                data = dump(reply)
            except Refusal as error:
                data = dump({"refused": str(error)})
            except (TypeError, ValueError, RecursionError) as error:
                data = dump({"refused": f"the answer is no JSON: {one_line(error)}"})
            while data:
                data = data[os.write(sink, data):]
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        os._exit(status)


# ---- the dispatcher ----


class Unit:
    """What one call is made of."""

    def __init__(self, items, slot=None):
        self.items, self.slot, self.deaths = items, slot, 0


class Worker:
    def __init__(self, slot):
        self.slot, self.unit, self.form, self.heard = slot, None, None, b""
        self.pid = self.source = self.sink = self.deadline = None


class Dispatcher:
    def __init__(self, spec, kind, n, seconds, source, sink):
        self.spec, self.kind, self.seconds = spec, kind, seconds
        self.source, self.sink = source, sink
        self.workers = [Worker(slot) for slot in range(n)]
        self.shared, self.own = collections.deque(), [collections.deque() for _ in range(n)]
        self.groups, self.form, self.fatal, self.failed_starts = {}, None, None, 0
        self.selector = selectors.DefaultSelector()
        self.selector.register(source, selectors.EVENT_READ, None)
        self.heard = b""

    # -- answers --

    def emit(self, items, answers):
        """The answers of a call in one go: who asks again after this process's death does not ask for a part."""
        lines = []
        for item, answer in zip(items, answers):
            line = dump(dict(answer, id=item["id"]))
            if len(line) > ANSWER_BYTES_MAX:
                words = f"an answer of {len(line)} bytes; at most {ANSWER_BYTES_MAX} are taken"
                line = dump({"id": item["id"], "error": words})
            lines.append(line)
        data = b"".join(lines)
        while data:
            data = data[os.write(self.sink, data):]

    def fail(self, unit, words):
        self.emit(unit.items, [{"error": words}] * len(unit.items))

    # -- workers --

    def start(self, worker):
        down, up = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        worker.pid = os.fork()
        if worker.pid == 0:
            self.selector.close()
            for other in self.workers:
                for fd in (other.source, other.sink):
                    if fd is not None:
                        os.close(fd)
            for fd in (self.source, self.sink, down[1], up[0]):
                os.close(fd)
            work(self.spec, self.kind, down[0], up[1])
        os.close(down[0])
        os.close(up[1])
        worker.source, worker.sink, worker.heard, worker.form = up[0], down[1], b"", None
        worker.deadline = time.monotonic() + max(START_SECONDS, self.seconds)
        self.selector.register(worker.source, selectors.EVENT_READ, worker)

    def end(self, worker):
        """Its status in words."""
        self.selector.unregister(worker.source)
        os.close(worker.source)
        os.close(worker.sink)
        try:
            os.kill(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(worker.pid, 0)
        worker.pid = worker.source = worker.sink = worker.deadline = None
        if os.WIFSIGNALED(status):
            return f"was killed by signal {os.WTERMSIG(status)}"
        return f"ended with status {os.WEXITSTATUS(status)}"

    def give_up(self, words):
        self.fatal = words
        for queue in [self.shared, *self.own]:
            while queue:
                self.fail(queue.popleft(), words)
        for worker in self.workers:
            if worker.unit is not None:
                self.fail(worker.unit, words)
                worker.unit = None
        for items in self.groups.values():
            self.fail(Unit(items), words)
        self.groups.clear()

    def split(self, unit):
        """The guilty alone fail: each sample is asked for by itself."""
        for item in reversed(unit.items):
            self.shared.appendleft(Unit([item]))

    def died(self, worker):
        status, unit, was_ready = self.end(worker), worker.unit, worker.form is not None
        worker.unit = None
        if not was_ready:
            self.failed_starts += 1
            if self.failed_starts >= STARTS_MAX:
                self.give_up(f"the worker {status} while it imported {one_line(self.spec, 80)}")
            return
        if unit is None:
            return
        unit.deaths += 1
        if unit.deaths < 2:
            (self.shared if unit.slot is None else self.own[unit.slot]).appendleft(unit)
        elif len(unit.items) > 1:
            self.split(unit)
        else:
            self.fail(unit, f"the worker {status}")

    def late(self, worker):
        unit, was_ready = worker.unit, worker.form is not None
        self.end(worker)
        worker.unit = None
        if not was_ready:
            limit = max(START_SECONDS, self.seconds)
            self.give_up(f"importing {one_line(self.spec, 80)} took more than {limit:g} s (reward_timeout)")
        elif len(unit.items) > 1:
            self.split(unit)
        else:
            self.fail(unit, f"no answer for {self.seconds:g} s (reward_timeout)")

    def replied(self, worker, line):
        reply = json.loads(line)
        if "fatal" in reply:
            self.give_up(reply["fatal"])
            return
        worker.deadline = None
        if "ready" in reply:
            worker.form = self.form = reply["ready"]
            self.failed_starts = 0
            return
        unit, worker.unit = worker.unit, None
        note = {} if not reply.get("printed") else {"note": f"it printed \"{reply['printed']}\" to standard output"}
        if "answers" in reply:
            first, *rest = reply["answers"]
            self.emit(unit.items, [dict(first, **note), *rest])
        elif "raised" in reply and len(unit.items) > 1:
            self.split(unit)
        else:
            self.fail(unit, reply.get("raised") or reply["refused"])

    def hear(self, worker):
        data = os.read(worker.source, 1 << 16)
        if not data:
            self.died(worker)
            return
        worker.heard += data
        while b"\n" in worker.heard:
            line, worker.heard = worker.heard.split(b"\n", 1)
            self.replied(worker, line)

    # -- items --

    def take(self, item):
        if self.fatal is not None and item.get("op") != "check":
            self.emit([item], [{"error": self.fatal}])
        elif "group" in item:
            key = item["group"]["of"]
            items = self.groups.setdefault(key, [])
            items.append(item)
            if len(items) == item["group"]["n"]:
                self.shared.append(Unit(self.groups.pop(key)))
        elif "episode" in item:
            slot = zlib.crc32(item["episode"].encode()) % len(self.workers)
            self.own[slot].append(Unit([item], slot))
        else:
            self.shared.append(Unit([item]))

    def send(self, worker, unit):
        data = dump(unit.items)
        worker.unit = unit
        try:
            while data:
                data = data[os.write(worker.sink, data):]
        except BrokenPipeError:
            pass  # its end is read next
        worker.deadline = time.monotonic() + self.seconds

    def next_unit(self, worker):
        own = self.own[worker.slot]
        while own or self.shared:
            unit = own.popleft() if own else self.shared.popleft()
            if unit.items[0].get("op") == "check" and "data" not in unit.items[0]:
                self.emit(unit.items, [{"done": False}])
            elif self.form == "sample" and len(unit.items) > 1:
                self.shared.extendleft(Unit([item]) for item in reversed(unit.items))
            else:
                return unit
        return None

    def dispatch(self):
        for worker in self.workers:
            while self.fatal is None and worker.unit is None and (self.own[worker.slot] or self.shared):
                if worker.pid is None:
                    self.start(worker)
                if worker.form is None:
                    break
                unit = self.next_unit(worker)
                if unit is None:
                    break
                self.send(worker, unit)
        if self.fatal is not None:
            self.give_up(self.fatal)

    def run(self):
        while True:
            self.dispatch()
            deadlines = [worker.deadline for worker in self.workers if worker.deadline is not None]
            wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self.selector.select(wait):
                if key.data is not None:
                    if key.data.source == key.fd:
                        self.hear(key.data)
                    continue
                data = os.read(self.source, 1 << 16)
                if not data:
                    return
                *lines, self.heard = (self.heard + data).split(b"\n")
                for line in lines:
                    self.take(json.loads(line))
            for worker in self.workers:
                if worker.deadline is not None and time.monotonic() >= worker.deadline:
                    self.late(worker)


def main(words):
    spec, kind, n, seconds = words
    source, sink = os.dup(0), os.dup(1)
    for fd in (source, sink):
        os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    dispatcher = Dispatcher(spec, kind, int(n), float(seconds), source, sink)
    try:
        dispatcher.run()
    except BrokenPipeError:
        pass
    finally:
        for worker in dispatcher.workers:
            if worker.pid is not None:
                dispatcher.end(worker)


if __name__ == "__main__":
    main(sys.argv[1:])
