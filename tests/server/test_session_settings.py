"""Which planner options of a session a plan inherits."""

from __future__ import annotations

from typing import Any

import pytest
from toy_runtime import toy_model

from mstar_rt.protos import request_pb2
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.session_settings import SessionSettings

TEMPERATURE = {"temperature": 0.01}


@pytest.mark.parametrize(
    ("session", "plan", "temperature"),
    [
        ({"planner": "mppi", **TEMPERATURE}, {}, 0.01),
        ({"planner": "mppi", **TEMPERATURE}, {"planner": "mppi"}, 0.01),
        ({"planner": "mppi", **TEMPERATURE}, {"planner": "cem"}, None),
        ({"planner": "mppi", **TEMPERATURE}, {"temperature": 0.5}, 0.5),
        ({"planner": "mppi", **TEMPERATURE}, {"planner": "cem", "temperature": 0.5}, 0.5),
        ({"planner": "cem"}, {"planner": "mppi", "temperature": 0.5}, 0.5),
        (TEMPERATURE, {}, 0.01),
        (TEMPERATURE, {"planner": "mppi"}, 0.01),
        (TEMPERATURE, {"planner": "cem"}, None),
    ],
)
def test_the_temperature_of_a_session_belongs_to_its_planner(
    session: dict[str, Any], plan: dict[str, Any], temperature: float | None
) -> None:
    defaults = TaskInput("plan", params={"num_samples": 16, **session})
    settings = SessionSettings(toy_model(), defaults, {}, request_pb2.RequestOptions())
    for message_id in (2, 3):
        params = settings.with_defaults(TaskInput("plan", params=plan), message_id).params
        assert params.get("temperature") == temperature
        assert params.get("planner") == plan.get("planner", session.get("planner"))
        assert (params["num_samples"], params["seed"]) == (16, message_id)
