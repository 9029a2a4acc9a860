"""What cannot be loaded on this machine is said in one sentence, and what takes long to load as it begins."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import toy_model

from mstar_rt.config import DeploymentConfig, WorkerConfig, parse_deployment
from mstar_rt.errors import ConfigError, GraphError
from mstar_rt.model import ServedModel
from mstar_rt.worker import process
from mstar_rt.worker.loaded import LoadedModel, load_model


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_is_not_there_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"rank 2 has device '{device}', but torch finds no CUDA device"):
        load_model(toy_model.declare("toy", "", {}), WorkerConfig(2, device=device))


def test_a_factory_that_gives_no_nodes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_model.declare("toy", "", {})
    module, _, name = model.nodes_factory.partition(":")
    monkeypatch.setattr(f"{module}.{name}", lambda model, resources: None)
    with pytest.raises(GraphError, match=f"model 'toy': {module}:{name} gives a NoneType, expected a dict of nodes"):
        load_model(model, WorkerConfig(0))


def compiling() -> DeploymentConfig:
    data = {
        "name": "test",
        "models": [{"name": "toy", "family": "toy_model:declare"}],
        "workers": [{"rank": 0, "compile": True}],
    }
    return parse_deployment(data)


def test_whoever_waits_is_told_that_it_compiles_and_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a minute is long for a start that says nothing; nobody has to turn logging up for it."""
    said_before: list[str] = []

    def load(model: ServedModel, worker: WorkerConfig, nodes: object) -> LoadedModel:
        said_before.append(capsys.readouterr().err)
        return dataclasses.replace(load_model(model, worker), compiled=("add",))

    monkeypatch.setattr(process, "load_model", load)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=itertools.count(10.0, 34.0).__next__))
    config = compiling()
    process.load_models(config, config.workers[0], ["toy"])
    assert said_before == ["mstar-rt: rank 0 compiles before it serves, which takes half a minute or more\n"]
    assert capsys.readouterr().err == "mstar-rt: rank 0 has loaded its models and compiled toy.add in 34 s\n"


def test_nothing_to_compile_is_refused() -> None:
    config = compiling()
    with pytest.raises(ConfigError, match="rank 0 has compile: true, but no node of 'toy' there can be compiled"):
        process.load_models(config, config.workers[0], ["toy"])
