"""The Python classes over engine and trainer: values, refusals, ends of life. Usage: check_embedding.py MODEL"""

import gc
import importlib
import pathlib
import signal
import sys
import tempfile
import time
from unittest import mock

import numpy as np

import lockstep
from lockstep import _embed

MODEL = sys.argv[1]


def bits(arrays):
    return np.concatenate(arrays).view(np.uint32).tolist()


def refused(kind, words, function, *args, **named):
    try:
        function(*args, **named)
    except kind as error:
        assert words in str(error), f"'{error}' does not mention '{words}'"
    else:
        raise AssertionError(f"expected {kind.__name__} that mentions '{words}'")


def engine_scoring_and_trainer_agree():
    model = lockstep.Model(MODEL, device="cpu", threads=1)
    assert model.info["vocab"] > 4 and model.info["numerics"] == "exact/2/f32" and model.info["version"] == 0
    first = lockstep.Engine(model, seed=3)
    second = lockstep.Engine(model, seed=3, batch=2, chunk=1, prefix="off", fork=False)
    a, b = (engine.generate([[1, 2], [3]], samples=3, max_tokens=6) for engine in (first, second))
    assert [rollout.tokens.tolist() for rollout in a] == [rollout.tokens.tolist() for rollout in b]
    assert bits([rollout.logprobs for rollout in a]) == bits([rollout.logprobs for rollout in b])
    trainer = lockstep.Trainer(model, rate=1e-3, loss="gspo", schedule="linear", schedule_steps=9)
    sequences = [rollout.sequence for rollout in a]
    assert bits(trainer.score(sequences)) == bits(model.score(sequences))
    assert bits(model.score(sequences)) == bits(model.score(sequences, batch=1, chunk=2))
    stats = trainer.policy(a, np.linspace(-1, 1, 6))
    assert stats["step"] == trainer.step == 1 and stats["differing"] == 0 and stats["ratio_max"] == 1, stats
    refused(lockstep.LockstepError, "lockstep_engine_update", first.tick)
    refused(lockstep.LockstepError, "other bits", trainer.policy, a, np.zeros(6))
    first.update()
    assert set(first.generate([[1, 2]], max_tokens=4)[0].weights.tolist()) == {1}


def an_interrupt_ends_a_call_soon():
    """KeyboardInterrupt comes between two ticks, not behind the last, and leaves an engine that goes on."""
    engine = lockstep.Engine(MODEL, seed=3, length_max=256)
    ticks = []
    tick = engine.tick

    def counted():
        if len(ticks) == 5:
            signal.raise_signal(signal.SIGINT)
        ticks.append(tick())
        return ticks[-1]

    engine.tick = counted
    try:
        engine.generate([[1, 2]], max_tokens=240)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    assert len(ticks) <= 6, ticks
    engine.tick = tick
    assert engine.take() is None
    fresh = lockstep.Engine(MODEL, seed=3, length_max=256)
    a, b = (e.generate([[1, 2]], max_tokens=6)[0] for e in (engine, fresh))
    assert a.tokens.tolist() == b.tokens.tolist() and bits([a.logprobs]) == bits([b.logprobs])


def supervised_steps_and_checkpoints():
    sequences = [[1, 2, 3, 4], [5, 6, 7]]
    with tempfile.TemporaryDirectory() as folder:
        trainer = lockstep.Trainer(MODEL, rate=1e-3)
        before = trainer.sft(sequences, masks=[[0, 0, 1, 1], [0, 1, 1]])
        assert before["tokens"] == 4 and "ratio_mean" not in before
        trainer.save(folder)
        trainer.sft(sequences)
        trainer.export(pathlib.Path(folder, "model"))
        whole = trainer.model.score(sequences)
        again = lockstep.Trainer(pathlib.Path(folder, "step-00000001"), rate=1e-3)
        refused(lockstep.LockstepError, "moments: was f32 and is bf16 now",
                lockstep.Trainer(pathlib.Path(folder, "step-00000001"), rate=1e-3, moments="bf16").resume)
        again.resume()
        again.sft(sequences)
        assert bits(whole) == bits(again.model.score(sequences))
        assert bits(whole) == bits(lockstep.Model(pathlib.Path(folder, "model")).score(sequences))


def wrong_arguments():
    model = lockstep.Model(MODEL)
    refused(lockstep.LockstepError, "no-such", lockstep.Model, "no-such-directory")
    refused(ValueError, "dtype", lockstep.Model, MODEL, dtype="f64")
    refused(lockstep.LockstepError, "no lever", lockstep.Engine, model, speed=3)
    refused(TypeError, "speed", lockstep.Trainer, model, speed=3)
    refused(TypeError, "rate: str 'fast' where a number", lockstep.Trainer, model, rate="fast")
    refused(TypeError, "directory: int 3", lockstep.Model, 3)
    refused(ValueError, "loss", lockstep.Trainer, model, loss="dpo")
    engine = lockstep.Engine(model, length_max=16)
    refused(TypeError, "integers", engine.submit, [1.5])
    refused(ValueError, "does not fit", engine.submit, [1 << 40])
    refused(lockstep.LockstepError, "vocabulary", engine.submit, [1 << 20], max_tokens=2)
    refused(lockstep.LockstepError, "length_max is 16", engine.submit, [1], max_tokens=99)
    trainer = lockstep.Trainer(model)
    refused(ValueError, "masks", trainer.sft, [[1, 2]], masks=[[1]])
    refused(ValueError, "no sequences", trainer.sft, [])
    refused(ValueError, "shape", trainer.policy, engine.generate([[1]], max_tokens=2), [1, 2])
    assert lockstep.advantages([1, 0], group=2, kind="mean").tolist() == [0.5, -0.5]


def the_signature_has_the_librarys_defaults():
    import inspect
    library = _embed.made(_embed.TrainerOptions, "trainer_options")
    names = {name for name, _ in library._fields_} - {"size", "reserved"}
    shown = dict(list(inspect.signature(lockstep.Trainer).parameters.items())[1:])
    assert set(shown) == names, set(shown) ^ names
    for name, parameter in shown.items():
        value, choices = parameter.default, _embed.CHOICES.get(name, ("f32", "bf16") if name == "moments" else None)
        assert getattr(library, name) == (value if choices is None else choices.index(value)), name


def a_refused_prompt_leaves_the_engine_as_it_was():
    engine, fresh = (lockstep.Engine(MODEL, seed=3, length_max=32) for _ in range(2))
    refused(lockstep.LockstepError, "prompt 1: ", engine.generate, [[1, 2], [1 << 20], [3]], max_tokens=4, samples=2)
    refused(lockstep.LockstepError, "prompt 1: ", engine.generate, [[1, 2], [1] * 32], max_tokens=4)
    refused(TypeError, "a list of prompts is wanted", engine.generate, "text")
    refused(TypeError, "item 0 is int 1; a list of prompts", engine.generate, [1, 2, 3])
    refused(TypeError, "item 1 is NoneType", engine.generate, [[1], None])
    refused(TypeError, "some are texts", engine.generate, ["a", [1]])
    refused(TypeError, "where a list or array", engine.submit, "text")
    assert engine.take() is None and engine.tick() == 0
    a, b = (e.generate([[1, 2], [3]], samples=2, max_tokens=6) for e in (engine, fresh))
    assert [one.tokens.tolist() for one in a] == [one.tokens.tolist() for one in b]


def texts_are_prompts_where_there_is_a_tokenizer():
    model = lockstep.Model(MODEL)
    texts = ["3 1 2 =>", "2 1 =>"]
    ids = model.encode(texts)
    spoken = lockstep.Engine(model, seed=3).generate(texts, samples=2, max_tokens=6)
    counted = lockstep.Engine(model, seed=3).generate(ids, samples=2, max_tokens=6)
    assert [one.tokens.tolist() for one in spoken] == [one.tokens.tolist() for one in counted]
    assert [one.text for one in spoken] == model.decode([one.tokens for one in counted])
    assert counted[0].text is None and all(isinstance(one.text, str) for one in spoken)
    with tempfile.TemporaryDirectory() as folder:
        bare = pathlib.Path(folder, "bare")
        bare.mkdir()
        for file in pathlib.Path(MODEL).iterdir():
            if file.suffix in (".safetensors", ".json") and "tokenizer" not in file.name:
                (bare / file.name).write_bytes(file.read_bytes())
        refused(lockstep.LockstepError, "tokenizer.json", lockstep.Engine(bare).generate, texts)


def looks_at_a_process_ship_what_is_new():
    """Of lockstep.ray, whose import is all that needs Ray here."""
    names = ("ray", "ray.exceptions", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies")
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names}):
        process = importlib.import_module("lockstep.ray").Process()
    process.start(["sh", "-c", "echo one; echo two"])
    while process.look()[0] is None:
        time.sleep(0.01)
    assert [process.look(since) for since in (0, 4, 8)] == [(0, b"one\ntwo\n"), (0, b"two\n"), (0, b"")]
    process.stop()


def handles_end_once():
    model = lockstep.Model(MODEL)
    with lockstep.Engine(model) as engine:
        ticket = engine.submit([1, 2], max_tokens=4)
        model.close()  # the engine holds it
        engine.cancel(ticket)
        assert engine.take().finish == "cancel" and engine.take() is None
    engine.close()
    refused(ValueError, "closed", engine.tick)
    refused(ValueError, "closed", model.score, [[1]])
    del engine, model
    gc.collect()


for check in (engine_scoring_and_trainer_agree, an_interrupt_ends_a_call_soon, supervised_steps_and_checkpoints,
              wrong_arguments, the_signature_has_the_librarys_defaults, a_refused_prompt_leaves_the_engine_as_it_was,
              texts_are_prompts_where_there_is_a_tokenizer, looks_at_a_process_ship_what_is_new, handles_end_once):
    check()
    print(f"{check.__name__}: ok")
