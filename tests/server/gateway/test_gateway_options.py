"""Refusals in the words of the fields, whoever refuses, and what a request is told that it could have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]

from toy_painter import painter

from generators.bagel.guidance import check_guidance
from mstar_rt.errors import DeadlineExceeded, Internal, InvalidArgument
from mstar_rt.server.gateway import chat, speech
from mstar_rt.server.gateway.errors import FieldError, Refusal
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.gateway.image_fields import EDIT_NAMES, NAMES, read_images
from mstar_rt.server.gateway.options import as_fields, named

USUAL: dict[str, Any] = {
    "num_denoise_steps": 4, "timestep_shift": 1.0, "text_guidance": 4.0, "image_guidance": 1.0, "guidance_start": 0.0,
    "guidance_end": 1.0, "renormalization": "none", "renormalization_min": 0.0,
}  # fmt: skip
OF_ALL = {"model", "prompt", "n", "response_format", "output_format", "stream", "budget_ms"}
OF_GUIDANCE = {"cfg_text_scale", "cfg_img_scale", "cfg_interval", "cfg_renorm_type", "cfg_renorm_min"}
OF_STEPS = {"num_inference_steps", "timestep_shift", "partial_images", "seed"}
OF_PLAN = {"max_tokens", "temperature", "stop"}


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (
            {"guidance_start": 0.8, "guidance_end": 0.4}, "cfg_interval",
            "guidance is on where 0.8 < time <= 0.4, and none of the 4 denoise steps lies there: move cfg_interval[0] "
            "and cfg_interval[1] apart, or set cfg_text_scale and cfg_img_scale to 1",
        ),
        (
            {"renormalization_min": 0.5}, "cfg_renorm_min",
            "cfg_renorm_min is 0.5, but cfg_renorm_type is 'none': leave one of them out",
        ),
    ],
)  # fmt: skip
def test_what_a_model_refuses_is_said_of_fields(given: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(FieldError) as error, as_fields(NAMES):
        check_guidance({**USUAL, **given})
    assert Refusal(error.value, "r").body["error"] == {
        "message": message, "type": "invalid_request_error", "param": field, "code": "invalid_argument",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "field", "said"),
    [
        ("width is 20, expected a multiple of 8 pixels", "size", "size (width) is 20, expected a multiple of 8 pixels"),
        ("seed.edit_image: tensor 'image' has H = 9", "image", "seed.edit_image: tensor 'image' has H = 9"),
        ("model 'seed': give height", "size", "model 'seed': give size (height)"),
        ("my-seed.think: the conversation is long.", "prompt", "my-seed.think: the prompt is long."),
        ("a.b: option 'renormalization' is 'width'", "cfg_renorm_type", "a.b: option 'cfg_renorm_type' is 'width'"),
        (
            """it's "seed" and 'a seed\\'s seed': give seed""",
            "seed",
            """it's "seed" and 'a seed\\'s seed': give seed""",
        ),
        ("image 'image' is 9 x 9, of width 9", "image", "image 'image' is 9 x 9, of size (width) 9"),
    ],
)
def test_names_of_models_and_tasks_stay(message: str, field: str, said: str) -> None:
    with pytest.raises(FieldError) as error, as_fields(EDIT_NAMES):
        raise InvalidArgument(message)
    assert (error.value.field, str(error.value)) == (field, said)


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("model 'x' is busy"), InvalidArgument("'My seed is' cannot be read out"), Internal("seed"),
        FieldError("a", "seed"),
    ],
)  # fmt: skip
def test_other_errors_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, as_fields(named({"seed": "seed"})):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("given", "is_edit", "known"),
    [
        ({}, False, OF_ALL | OF_GUIDANCE | OF_STEPS | OF_PLAN | {"think", "size"}),
        ({"think": True}, False, OF_ALL | OF_GUIDANCE | OF_STEPS | OF_PLAN | {"think", "size"}),
        ({}, True, OF_ALL | OF_GUIDANCE | OF_STEPS | {"image"}),
    ],
)
def test_an_unknown_field_is_told_what_such_a_request_can_have(
    given: dict[str, Any], is_edit: bool, known: set[str]
) -> None:
    with pytest.raises(FieldError) as error:
        read_images(Fields({"prompt": "a barn", "zzzzz": 1, **given}), painter(), is_edit)
    assert str(error.value) == f"zzzzz is not known here, known: {', '.join(sorted(known))}"
    assert error.value.field == "zzzzz"


def test_fields_of_a_plan_are_suggested_where_one_can_be_written() -> None:
    for thinks in (True, False):
        with pytest.raises(FieldError, match="temprature is not known here") as error:
            read_images(Fields({"prompt": "a barn", "temprature": 1}), painter(thinks=thinks), False)
        assert ("did you mean 'temperature'?" in str(error.value)) == thinks


def test_nothing_is_listed_twice() -> None:
    for known in (chat.KNOWN, speech.KNOWN):
        assert len(set(known)) == len(known)


def test_a_deadline_is_said_of_its_field() -> None:
    refusal = Refusal(DeadlineExceeded("the deadline passed 2.0 ms before node 'flow'"), "r")
    assert (refusal.status, refusal.body["error"]["param"]) == (504, "budget_ms")


def test_what_nothing_is_made_of_is_not_suggested() -> None:
    with pytest.raises(FieldError, match="qualiti is not known here, known: ") as error:
        read_images(Fields({"prompt": "a barn", "qualiti": "high"}), painter(), False)
    assert "quality" not in str(error.value)
