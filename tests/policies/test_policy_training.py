"""Training of the small policy: labels, prompts, the loss with given actions, and that a stopped run goes on the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.pi05.config import DecoderConfig, VisionConfig
from policies.pi05.network import Pi05Network
from policies.pi05.settings import settings_for
from policies.pi05.text import Prompter, load_tokenizer
from policies.pi05.train.batches import Batch, Batches, Prompts
from policies.pi05.train.demonstrations import (
    ACTION_HORIZON,
    HELD_OUT_STREAM,
    MAX_PREFIX_DELAY,
    TRAIN_STREAM,
    Demonstrations,
    record_demonstrations,
)
from policies.pi05.train.files import SETTINGS, STATISTICS, TOKENIZER, write_settings, write_vocabulary
from policies.pi05.train.flow_training import TrainingSettings, flow_loss, train_policy
from policies.pi05.train.network_config import TABLETOP_POLICY
from policies.pi05.train.sampling import sample_actions
from policies.pi05.train.statistics import write_statistics
from policies.pi05.train.training_state import open_for_training
from policies.pi05.train.vocabulary import VOCAB_SIZE
from sim_bridge.instruction_tasks import TASKS
from sim_bridge.tabletop_expert import Expert
from sim_bridge.tabletop_servo import ServoTabletop

TINY = dataclasses.replace(
    TABLETOP_POLICY,
    vision=VisionConfig(dim=16, depth=1, num_heads=2, mlp_dim=16, image_size=64, patch_size=32),
    language=DecoderConfig(width=16, mlp_dim=16),
    expert=DecoderConfig(width=16, mlp_dim=16),
    depth=2,
    num_heads=2,
    head_dim=8,
)


@pytest.fixture(scope="module")
def demonstrations() -> Demonstrations:
    return record_demonstrations(0, TRAIN_STREAM, 60)


@pytest.fixture(scope="module")
def folder(demonstrations: Demonstrations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    write_statistics(folder / STATISTICS, demonstrations)
    write_vocabulary(folder)
    write_settings(folder)
    return folder


def _batch(demonstrations: Demonstrations, folder: Path, size: int = 8) -> Batch:
    return Batches(demonstrations, folder).draw(size, np.random.default_rng(0))


def _network(seed: int = 0) -> Pi05Network:
    torch.manual_seed(seed)
    network = Pi05Network(TINY)
    open_for_training(network)
    return network


def test_demonstrations_are_of_their_seed_and_stream(demonstrations: Demonstrations) -> None:
    again = record_demonstrations(0, TRAIN_STREAM, 20)
    np.testing.assert_array_equal(again.actions, demonstrations.actions[:20])
    other = record_demonstrations(0, HELD_OUT_STREAM, 20)
    assert not np.array_equal(again.effector, other.effector)


def test_labels_are_what_the_expert_does_from_there(demonstrations: Demonstrations) -> None:
    physics = ServoTabletop()
    for index in np.flatnonzero(demonstrations.prefix == 0)[:8]:
        expert = Expert(tuple(TASKS.values())[demonstrations.task[index]])
        physics.place(demonstrations.effector[index], demonstrations.puck[index])
        first = expert(physics.effector_xy, physics.puck_xy)
        np.testing.assert_allclose(demonstrations.actions[index, 0], first, atol=2e-4)
    assert demonstrations.actions.shape == (60, ACTION_HORIZON, 2)
    assert 0 < (demonstrations.prefix > 0).mean() < 0.6
    assert demonstrations.prefix.max() <= MAX_PREFIX_DELAY


def test_they_are_kept_in_a_file(demonstrations: Demonstrations, tmp_path: Path) -> None:
    demonstrations.save(tmp_path / "some.npz")
    for field in dataclasses.fields(Demonstrations):
        read = getattr(Demonstrations.load(tmp_path / "some.npz"), field.name)
        np.testing.assert_array_equal(read, getattr(demonstrations, field.name))


def test_prompts_are_those_of_the_served_policy(folder: Path) -> None:
    prompter = Prompter(load_tokenizer(str(folder / TOKENIZER), VOCAB_SIZE), 48, state_as_text=True)
    texts = [text for task in TASKS.values() for text in (*task.phrasings, *task.held_out_phrasings)]
    states = np.random.default_rng(0).uniform(-1.1, 1.1, (len(texts), 2))
    ids, mask = Prompts(folder / TOKENIZER).ids(texts, states)
    for row, valid, text, state in zip(ids, mask, texts, states, strict=True):
        expected = prompter.ids(text, state)
        assert row[valid].tolist() == expected
        assert not prompter.has_unknown(expected)
    assert prompter.has_unknown(prompter.ids("juggle the puck", states[0]))


def test_the_settings_are_what_a_deployment_reads(folder: Path) -> None:
    settings = settings_for("policy", "pi05", "", {"config": str(folder / SETTINGS)})
    assert settings.network == TABLETOP_POLICY
    assert settings.relative_to == (0, 1)
    assert settings.max_prefix_delay == MAX_PREFIX_DELAY
    assert [camera.name for camera in settings.cameras] == ["top", "wrist"]


def test_actions_that_are_given_are_not_learnt_but_count(demonstrations: Demonstrations, folder: Path) -> None:
    batch, network = _batch(demonstrations, folder), _network()
    given = dataclasses.replace(batch, prefix=torch.full_like(batch.prefix, 3))

    def loss(changed: Batch) -> float:
        torch.manual_seed(1)
        return flow_loss(network, changed, draws=2).item()

    torch.manual_seed(0)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    other = given.actions.clone()
    other[:, :3] += 1.0
    assert loss(given) != loss(dataclasses.replace(batch, prefix=torch.zeros_like(batch.prefix)))
    assert loss(given) != loss(dataclasses.replace(given, actions=other))
    everything_but_one = dataclasses.replace(given, prefix=torch.full_like(batch.prefix, ACTION_HORIZON - 1))
    last_changed = given.actions.clone()
    last_changed[:, -1] += 10.0
    assert loss(dataclasses.replace(everything_but_one, actions=last_changed)) > 10 * loss(everything_but_one)


def test_sampling_keeps_what_is_given(demonstrations: Demonstrations, folder: Path) -> None:
    batch, network = _batch(demonstrations, folder), _network()
    noise = torch.randn_like(batch.actions)
    free = sample_actions(network, batch.context, noise, 3)
    fixed = sample_actions(network, batch.context, noise, 3, batch.actions[:, :4])
    torch.testing.assert_close(fixed[:, :4], batch.actions[:, :4])
    assert (fixed[:, 4:] - free[:, 4:]).abs().max() > 1e-4


def test_a_stopped_run_goes_on_the_same(demonstrations: Demonstrations, folder: Path, tmp_path: Path) -> None:
    def train(state: str, *, until: int) -> dict[str, torch.Tensor]:
        settings = TrainingSettings(6, batch_size=2, draws=2, checkpoint_every=2)
        batches = Batches(demonstrations, folder)

        def checkpoint(step: int, network: Pi05Network) -> None:
            if step == until:
                raise KeyboardInterrupt

        try:
            average = train_policy(TINY, batches, settings, 0, tmp_path / state, lambda line: None, checkpoint)
        except KeyboardInterrupt:
            return {}
        return average.state_dict()

    whole = train("whole", until=-1)
    train("parts", until=4)
    parts = train("parts", until=-1)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0)


def test_it_learns(demonstrations: Demonstrations, folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = TrainingSettings(40, batch_size=4, draws=4, log_every=10, checkpoint_every=40)
    batches = Batches(demonstrations, folder)
    train_policy(TINY, batches, settings, 0, tmp_path / "state", lines.append, lambda step, network: None)
    losses = [float(line.split()[3]) for line in lines if " loss " in line]
    assert losses[-1] < 0.7 * losses[0]
