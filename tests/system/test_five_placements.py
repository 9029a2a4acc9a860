"""The same requests under five placements, and on replicas, give equal answers: alone bit by bit, mixed within 1e-5."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composite_serving import (
    Values,
    ask,
    ask_in,
    assert_equal,
    composite,
    composite_deployment,
    image,
    series,
    start_composite,
)
from golden_data import Arrays, close, frames_of, past_of, plan_options
from serving import Serving, assert_nothing_is_held, deployment, held

from mstar_rt.client import Client
from mstar_rt.client.results import RolloutStep

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

NUM_RANKS = 5
PLACEMENTS: dict[str, list[dict[str, Any]]] = {
    "one_rank": [{"ranks": [0]}],
    "encoder_apart": [{"ranks": [0]}, {"nodes": ["encode"], "ranks": [1]}],
    "prefill_apart": [
        {"ranks": [1]},
        {"nodes": ["decode"], "ranks": [2]},
        {"ranks": [3], "walks": ["tell"]},
        {"nodes": ["codec", "vocode"], "ranks": [2]},
    ],
    "branches_apart": [{"ranks": [2]}, {"nodes": ["cond"], "ranks": [3]}, {"nodes": ["uncond"], "ranks": [4]}],
    "everything_apart": [
        {"nodes": ["encode", "paint"], "ranks": [0]},
        {"nodes": ["prefill", "understand", "listen"], "ranks": [1]},
        {"nodes": ["decode", "cond"], "ranks": [2]},
        {"nodes": ["codec", "uncond"], "ranks": [3]},
        {"nodes": ["vocode", "combine", "shrink"], "ranks": [4]},
        {"nodes": ["decode"], "ranks": [4], "walks": ["tell"]},
    ],
}
REPLICAS = [{"ranks": [0, 3]}, {"nodes": ["encode"], "ranks": [1, 2, 4]}]
VJEPA_PLACEMENTS: dict[str, list[dict[str, Any]]] = {
    "golden_encoder_apart": [{"ranks": [0]}, {"nodes": ["encode", "observe", "observe_goal"], "ranks": [1]}],
    "golden_memory_apart": [{"ranks": [2]}, {"nodes": ["remember"], "ranks": [3]}],
    "golden_everything_apart": [
        {"ranks": [4]},
        {"nodes": ["encode", "observe", "observe_goal"], "ranks": [0]},
        {"nodes": ["recall", "rollout_start"], "ranks": [1]},
        {"nodes": ["remember"], "ranks": [2]},
        {"nodes": ["predict"], "ranks": [3]},
    ],
}
TOLERANCE = 1e-5
BRANCH_TOLERANCE = 1e-6
"""On one rank both branches share a step, so their matrix products add up in another order."""

Ask = Callable[[Client, str], Values]


def one(task: str, rows: int, **options: Any) -> Ask:
    return lambda client, model: ask(client, model, task, {"image": image(rows, rows)}, **options)


def session(client: Client, model: str) -> Values:
    """Four requests of a session, two of which read what others left."""
    values: Values = {}
    with client.task_session(model) as opened:
        for turn, (task, rows) in enumerate((("look", 6), ("listen", 3), ("answer", 0), ("listen", 9))):
            tensors = {"image": image(rows, rows)} if rows else {}
            options = {"steps": 5} if task == "answer" else {}
            got = ask_in(opened, task, tensors, **options)
            values |= {(name, (turn, *iteration)): value for (name, iteration), value in got.items()}
    return values


REQUESTS: dict[str, Ask] = {
    "encode": one("encode", 24),
    "generate": one("generate", 6, steps=5),
    "generate, one step": one("generate", 1, steps=1),
    "generate, sampled": one("generate", 7, steps=20, temperature=1.5, seed=11),
    "generate, until its end": one("generate", 5, steps=64, temperature=2.0, seed=3, end_token=4),
    "speak": one("speak", 6, steps=11),
    "speak, one step": one("speak", 9, steps=1, temperature=1.0, seed=5),
    "speak, until its end": one("speak", 5, steps=64, temperature=2.0, seed=4, end_token=4),
    "speak offline": one("speak_offline", 6, steps=11),
    "denoise": one("denoise", 12, steps=6, seed=2),
    "denoise, unguided": one("denoise", 3, steps=3, guidance=0.0),
    "fill and tell": one("fill_and_tell", 6, steps=5),
    "shrink": lambda client, model: ask(
        client, model, "shrink", {"canvas": np.ones(1, np.float32)}, steps=4, picture_kb=1024
    ),
    "session": session,
}


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory, dimensions: Path) -> Iterator[Serving]:
    """One model per placement, all on the same five workers, with streams of different bounds."""
    (golden_model,) = deployment(dimensions)["models"]
    models = [
        composite(name, rules, max_ready_chunks=1 + index % 3)
        for index, (name, rules) in enumerate({**PLACEMENTS, "replicas": REPLICAS}.items())
    ]
    models += [
        ({**golden_model, "name": name}, [{"model": name, **rule} for rule in rules])
        for name, rules in VJEPA_PLACEMENTS.items()
    ]
    data = composite_deployment(models, NUM_RANKS, worker={"kv_memory_mb": 32})
    serving = start_composite(tmp_path_factory.mktemp("placements"), data)
    try:
        yield serving.wait()
    finally:
        said = serving.end()
    assert serving.process.returncode == 0, said


def test_clients_are_told_which_rank_runs_what(placed: Serving) -> None:
    with placed.connect() as client:
        places = client.describe("everything_apart").places
        everywhere = client.describe("replicas").places
    decode = {place.walks: place.ranks for place in places if place.node == "decode"}
    assert decode[("tell",)] == (4,)
    assert {ranks for walks, ranks in decode.items() if "tell" not in walks} == {(2,)}
    assert {place.ranks for place in everywhere} == {(0, 3), (1, 2, 4)}
    assert {place.dtype for place in (*places, *everywhere)} == {"float32"}


@pytest.fixture
def client(placed: Serving) -> Iterator[Client]:
    with placed.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(placed: Serving) -> dict[str, Values]:
    """Every request alone, on one rank."""
    with placed.connect() as client:
        return {name: request(client, "one_rank") for name, request in REQUESTS.items()}


def test_the_requests_show_what_they_are_meant_to(expected: dict[str, Values]) -> None:
    """A model whose streams or branches had no effect would be equal anywhere."""
    talk = [int(token[0]) for token in series(expected["generate"], "next_token")]
    assert [int(token[0]) for token in series(expected["fill and tell"], "next_token")] == talk
    assert [int(expected["session"]["next_token", (2, step)][0]) for step in range(5)] == talk
    assert len(set(talk)) > 1
    for name in ("generate, until its end", "speak, until its end"):
        ended = series(expected[name], "next_token")
        assert int(ended[-1][0]) == 4
        assert 1 < len(ended) < 64
    audio = series(expected["speak"], "audio")
    assert [len(chunk) for chunk in audio] == [3, 6, 12, 12]
    np.testing.assert_array_equal(np.concatenate(audio), expected["speak offline"]["audio", ()])
    assert np.abs(expected["session"]["impression", (1,)] - expected["session"]["impression", (3,)]).max() > 1e-3


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "one_rank"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_alone_every_placement_gives_the_same_bits(
    client: Client, expected: dict[str, Values], request_name: str, placement: str
) -> None:
    are_branches_apart = request_name.startswith("denoise") and placement in ("branches_apart", "everything_apart")
    tolerance = BRANCH_TOLERANCE if are_branches_apart else 0.0
    assert_equal(REQUESTS[request_name](client, placement), expected[request_name], tolerance)


def test_streamed_sound_is_the_sound_made_offline_at_every_length(client: Client) -> None:
    for steps in (*range(1, 14), 64):
        for placement in ("one_rank", "everything_apart"):
            streamed = one("speak", 4, steps=steps)(client, placement)
            assert len(series(streamed, "next_token")) == steps
            offline = one("speak_offline", 4, steps=steps)(client, placement)["audio", ()]
            assert len(offline) == 3 * steps
            np.testing.assert_array_equal(np.concatenate(series(streamed, "audio")), offline)


def test_all_at_once_under_all_placements(placed: Serving, client: Client, expected: dict[str, Values]) -> None:
    jobs = [(request, placement) for placement in (*PLACEMENTS, "replicas") for request in REQUESTS]
    start = threading.Barrier(len(jobs))

    def run(job: tuple[str, str]) -> Values:
        request, placement = job
        start.wait()
        return REQUESTS[request](client, placement)

    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(run, jobs))
    for (request, _), got in zip(jobs, answers, strict=True):
        assert_equal(got, expected[request], TOLERANCE)
    assert_nothing_is_held(client)


def test_sessions_stick_to_their_replica_and_requests_spread(client: Client, expected: dict[str, Values]) -> None:
    before = busy_steps(client)
    sessions = [client.task_session("replicas") for _ in range(4)]
    try:
        for rows in (3, 9):
            for number, opened in enumerate(sessions):
                tensors = {"image": image(rows + 100 * number, rows)}
                heard = ask_in(opened, "listen", tensors)["impression", ()]
                if number == 0 and rows == 3:
                    np.testing.assert_allclose(
                        heard, ask_listen(client, "one_rank", [tensors])[0], rtol=0, atol=TOLERANCE
                    )
        for number, opened in enumerate(sessions):
            tensors = [{"image": image(rows + 100 * number, rows)} for rows in (3, 9, 4)]
            last = ask_in(opened, "listen", tensors[2])["impression", ()]
            np.testing.assert_allclose(
                last, ask_listen(client, "one_rank", tensors)[2], rtol=0, atol=TOLERANCE, err_msg=f"session {number}"
            )
    finally:
        for opened in sessions:
            opened.close()
    jobs = ["generate"] * 8
    with ThreadPoolExecutor(len(jobs)) as pool:
        for got in pool.map(lambda job: REQUESTS[job](client, "replicas"), jobs):
            assert_equal(got, expected["generate"], TOLERANCE)
    after = busy_steps(client)
    assert all(after[rank] > before[rank] for rank in range(NUM_RANKS))
    assert_nothing_is_held(client)


def ask_listen(client: Client, model: str, turns: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    with client.task_session(model) as opened:
        return [ask_in(opened, "listen", tensors)["impression", ()] for tensors in turns]


def busy_steps(client: Client) -> list[float]:
    processes = client.stats().processes
    return [processes[f"worker/{rank}"]["steps_total"] for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("model", VJEPA_PLACEMENTS)
def test_the_published_rollout_and_encoder(client: Client, golden: Arrays, model: str) -> None:
    for row in range(2):
        frames = frames_of(golden, row)
        close(client.encode(model, frames).latents, golden["frame_latents_normed"][row], 1e-5)
        actions, states = golden["actions"][row, 1:], golden["states"][row, 1:]
        steps = client.rollout(model, frames, actions, states=states, **past_of(golden, row))
        close(np.stack([step.latent for step in steps if step.latent is not None]), golden["rollout"][row], 1e-5)
    assert_nothing_is_held(client)


@pytest.mark.parametrize("model", VJEPA_PLACEMENTS)
def test_the_published_plans(client: Client, golden_cem: Any, model: str) -> None:
    arrays, settings = golden_cem
    for name in ("h1", "h3", "h2_pinned"):
        plan = client.plan(
            model, None, None, arrays["pose"][0, 0], latents=arrays["context_latents"][0],
            goal_latents=arrays["goal_latents"][0, 0], **plan_options(settings, name),
        )  # fmt: skip
        close(plan.actions, arrays[f"plan_{name}"], 1e-4)
    assert_nothing_is_held(client)


@pytest.mark.parametrize("model", VJEPA_PLACEMENTS)
def test_a_history_over_ranks_is_the_frames_that_its_window_holds(client: Client, golden: Arrays, model: str) -> None:
    """Whichever rank has the latents and whichever the cache, which slides twice."""
    latents, actions, states = golden["rollout"][0], golden["actions"][0], golden["states"][0]
    window = {"context_window": 3, "window_stride": 2}
    search = {"num_samples": 12, "num_elites": 3, "num_iterations": 2, "rollout_horizon": 3}
    with client.session(model, **window) as session:
        session.set_goal(goal_latents=golden["frame_latents_normed"][1], goal_use="nearest")
        for newest in range(6):
            session.observe(
                None, states[newest], latents=latents[newest : newest + 1],
                executed_action=actions[newest - 1] if newest else None,
            )  # fmt: skip
            start = 0 if newest < 3 else 2 * (-(-(newest - 2) // 2))
            assert session.observed is not None
            assert session.observed.num_frames == newest + 1 - start
            context: dict[str, Any] = {
                "latents": latents[start : newest + 1],
                "context_actions": actions[start:newest] if newest > start else None,
                "context_states": states[start : newest + 1],
                **window,
            }
            told = client.rollout(model, None, golden["actions"][1, :4], states[newest], **context)
            remembered = [step for step in session.rollout(golden["actions"][1, :4]) if isinstance(step, RolloutStep)]
            for step, want in zip(remembered, told, strict=True):
                assert want.latent is not None
                close(step.latent, want.latent, 1e-5)
            goal = {"goal_latents": golden["frame_latents_normed"][1], "goal_use": "nearest"}
            want_plan = client.plan(model, None, None, states[newest], **context, **goal, **search, seed=5)
            close(session.plan(**search, seed=5).actions, want_plan.actions, 1e-4)
    assert_nothing_is_held(client)


@pytest.mark.parametrize("model", VJEPA_PLACEMENTS)
def test_a_plan_over_ranks_answers_when_its_time_is_up(client: Client, golden_cem: Any, model: str) -> None:
    arrays, _ = golden_cem
    plan = client.plan(
        model, None, None, arrays["pose"][0, 0], latents=arrays["context_latents"][0],
        goal_latents=arrays["goal_latents"][0, 0], budget_ms=300, num_samples=50, num_elites=8, num_iterations=100,
        rollout_horizon=2,
    )  # fmt: skip
    assert 0 < plan.num_iterations < 100
    assert plan.actions.shape == (2, 7)
    assert_nothing_is_held(client)


def test_nothing_is_held_between_requests_of_a_session_but_what_it_keeps(client: Client) -> None:
    with client.task_session("everything_apart") as opened:
        ask_in(opened, "listen", {"image": image(1, 8)})
        ask_in(opened, "generate", {"image": image(1, 8)}, steps=8)
        for _ in range(200):
            left = {name for name in held(client) if "pages_held" in name}
            if left == {"worker/1 pages_held/everything_apart/history"}:
                break
        assert left == {"worker/1 pages_held/everything_apart/history"}
    assert_nothing_is_held(client)
