"""A whole language model at tiny size: conversations in, text out, alone, batched and in parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_tiny import TEMPLATE, write_folder
from walk_driver import Request, Served, WalkDriver, drive

from generators.llama.chat_nodes import Prompt
from generators.llama.config import read_config
from generators.llama.model import declare
from generators.llama.tokenizer import ChatTemplate, LlamaTokenizer
from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import Reason
from mstar_rt.model.conversation import write_conversation

TURNS = [{"role": "system", "content": "You are a robot."}, {"role": "user", "content": "hello world, naïve 日本"}]


def conversation(turns: list[dict[str, str]]) -> dict[str, torch.Tensor]:
    return {"conversation": torch.from_numpy(write_conversation(turns))}


def said(content: str) -> dict[str, torch.Tensor]:
    return conversation([{"role": "user", "content": content}])


def tokens(served: Served) -> list[int]:
    return [int(token) for token in served.emitted["token"]]


def text(served: Served) -> str:
    return b"".join(piece.numpy().tobytes() for piece in served.emitted["text"]).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("llama") / "tiny")


@pytest.fixture
def driver(folder: Path) -> Iterator[WalkDriver]:
    driver = drive(declare("tiny", str(folder), {}))
    yield driver
    assert driver.num_pages_held == 0


def test_greedy_text_is_that_of_transformers(folder: Path, driver: WalkDriver) -> None:
    """The same prompt ids by the template, the same tokens, and their text."""
    transformers = pytest.importorskip("transformers")
    words = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    prompt = words.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    oracle = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    made = oracle.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, pad_token_id=2)
    expected = made[0, len(prompt) :].tolist()
    served = driver.run_one("chat", conversation(TURNS), max_tokens=30)
    assert int(served.emitted["num_input_tokens"][0]) == len(prompt)
    assert tokens(served) == expected
    assert text(served) == words.decode(expected, skip_special_tokens=True)
    ended = expected[-1] == 2
    assert [int(reason) for reason in served.emitted["reason"]] == [Reason.END if ended else Reason.MAX_TOKENS]


def test_a_request_gets_the_same_alone_batched_staggered_and_in_parts(driver: WalkDriver) -> None:
    requests = [
        Request("chat", said(content), {"max_tokens": 12, "seed": seed, "ignore_end": True, **options})
        for seed, (content, options) in enumerate(
            [
                ("hello", {"temperature": 1.0}),
                ("hello", {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3}),
                ("world hello world " * 4, {}),
                ("hello", {"temperature": 1.2, "top_k": 5}),
            ]
        )
    ]
    alone = [tokens(driver.run(request)[0]) for request in requests]
    assert len({tuple(of_one) for of_one in alone}) == len(alone)
    assert [tokens(served) for served in driver.run(*requests)] == alone
    assert ("decode", 4) in driver.batches
    assert [tokens(served) for served in driver.run(*requests, stagger=2)] == alone
    driver.share_of = lambda num_left: min(num_left, 5)
    assert [tokens(served) for served in driver.run(*requests)] == alone


def test_seeds_and_options_change_what_is_drawn(driver: WalkDriver) -> None:
    usual = {"max_tokens": 16, "temperature": 1.0, "seed": 1, "ignore_end": True}
    first = tokens(driver.run_one("chat", said("hello"), **usual))
    assert tokens(driver.run_one("chat", said("hello"), **usual)) == first
    for change in ({"seed": 2}, {"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.3}, {"repetition_penalty": 2.0}):
        assert tokens(driver.run_one("chat", said("hello"), **{**usual, **change})) != first, change
    assert len(tokens(driver.run_one("chat", said("hello"), **{**usual, "max_tokens": 3}))) == 3


def test_what_ends_a_text(folder: Path, driver: WalkDriver, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"max_tokens": 24, "temperature": 1.5, "seed": 3, "ignore_end": True}
    whole = driver.run_one("chat", said("hello"), **usual)
    letter = next(character for character in text(whole)[4:] if character.isascii() and character.isprintable())
    stopped = driver.run_one("chat", said("hello"), **usual, stop=json.dumps([letter]))
    assert text(stopped) == text(whole)[: text(whole).index(letter)]
    assert int(stopped.emitted["reason"][0]) == Reason.STOP
    assert tokens(whole)[: len(tokens(stopped))] == tokens(stopped)

    end = tokens(whole)[5]
    if end not in tokens(whole)[:5]:
        ending = write_folder(tmp_path / "ending", eos_token_id=[end, 1])
        ended = drive(declare("tiny", str(ending), {})).run_one("chat", said("hello"), **{**usual, "ignore_end": False})
        assert tokens(ended) == tokens(whole)[:6]
        assert int(ended.emitted["reason"][0]) == Reason.END

    driver.now_ns = 10
    late = driver.run(Request("chat", said("hello"), usual, deadline_ns=10))[0]
    assert tokens(late) == tokens(whole)[:1]
    assert int(late.emitted["reason"][0]) == Reason.DEADLINE


def test_what_is_refused(folder: Path) -> None:
    driver = drive(declare("tiny", str(folder), {"max_sequence_tokens": 64}))
    for tensors, options, message in (
        (
            said("hello " * 8),
            {},
            "has 36 tokens and max_tokens is 31 (the default), together over the 64 that this model takes: shorten it, or "
            "set max_tokens to 28 or less",
        ),
        (said("hello " * 40), {}, "model takes: shorten it$"),
        (said("hello"), {"max_tokens": 60}, "and max_tokens is 60, together over the 64"),
        (said("a<|end|>b"), {}, "has '<|end|>' in it"),
        (said("hello"), {"stop": "[1]", "max_tokens": 4}, "'stop' is no list of strings"),
        (said(" "), {}, "has no word in it"),
        (said("hello" * 10_000), {}, "the limit of this model is"),
        (said("hello"), {"stopp": "[]"}, "unknown option 'stopp', did you mean 'stop'"),
        (said("hello"), {"top_p": 1.5}, "top_p"),
    ):
        with pytest.raises(InvalidArgument, match=re.sub(r"([|()])", r"\\\1", message)):
            driver.run_one("chat", tensors, **options)
    assert driver.num_pages_held == 0


def test_the_shortest_sequences_that_are_let_in_have_room_for_a_warm_up(folder: Path) -> None:
    driver = drive(declare("tiny", str(folder), {"max_sequence_tokens": 25}))
    warm = driver.run_one("chat", {"conversation": torch.zeros(1, dtype=torch.uint8)}, max_tokens=4, ignore_end=True)
    assert len(tokens(warm)) == 4
    assert driver.num_pages_held == 0


def test_templates_that_refuse_a_conversation_or_are_none(tmp_path: Path) -> None:
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turns here') }}{% endif %}ok"
    folder = write_folder(tmp_path / "strict", template=strict)
    prompt = Prompt(LlamaTokenizer(folder, 300), ChatTemplate(folder), 64)
    assert prompt.ids(write_conversation(TURNS[1:]))
    with pytest.raises(InvalidArgument, match="refuses the conversation: no system turns here"):
        prompt.ids(write_conversation(TURNS))
    unsafe = write_folder(tmp_path / "unsafe", template="{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidArgument, match="refuses the conversation"):
        ChatTemplate(unsafe).write(TURNS)
    with pytest.raises(ConfigError, match="is none"):
        ChatTemplate(write_folder(tmp_path / "broken", template="{% if %}"))
    file = folder / "tokenizer_config.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatTemplate(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert "hello" in ChatTemplate(folder).write(TURNS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, "describes a 'gemma'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu', served is 'silu' alone"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"head_dim": 15}, "is odd"),
        ({"rope_scaling": {"type": "yarn"}}, "scales positions by 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "'factor' must be a number"),
        ({"vocab_size": "many"}, "'vocab_size' must be a whole number"),
        ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
    ],
)
def test_configs_that_are_not_served(changes: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


def test_options_of_a_deployment(folder: Path) -> None:
    assert declare("tiny", str(folder), {"max_sequence_tokens": 32}).caches["text"].max_sequence_tokens == 32
    for checkpoint, options, message in (
        ("", {}, "has no checkpoint"),
        (str(folder), {"checkpoint": "smollm2"}, "both a checkpoint and the option"),
        ("", {"checkpoint": "smolm2"}, "did you mean 'smollm2'"),
        (str(folder), {"max_sequence_tokens": 257}, "from 2 to 256"),
        (
            str(folder),
            {"max_sequence_tokens": 24},
            "is 24, but the shortest request of task 'chat' takes 25: set it to",
        ),
        (str(folder), {"temperature": 1}, "has no option 'temperature'"),
        (str(folder / "none"), {}, "there is no .*config.json"),
        ("", {"checkpoint": ["smollm2"]}, "expected a name as text: smollm2"),
        ("/none/smollm2", {}, "there is no folder /none/smollm2; .*options: {checkpoint: smollm2}"),
    ):
        with pytest.raises(ConfigError, match=message):
            declare("tiny", checkpoint, options)


def test_defaults_are_the_publishers(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    given = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [7, 2]}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    params = {param.name: param.default for param in declare("tiny", str(tmp_path), {}).task("chat").params}
    assert (params["temperature"], params["top_p"], params["top_k"], params["max_tokens"]) == (0.6, 0.9, 0, 127)
    assert read_config(tmp_path).end_ids == (7, 2)
