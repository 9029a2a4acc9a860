"""What a deployment may say, what is declared of it, and that it can be drawn and placed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from generators.bagel import model as bagel_model
from generators.bagel.model import declare
from generators.bagel.tokens import BagelTokens
from mstar_rt.cli import main
from mstar_rt.config import PlacementRule, WorkerConfig
from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.model.generation import warm_up_options
from mstar_rt.placement import PlacedModel, place
from mstar_rt.registry import load_declare
from mstar_rt.server.warmup import zeros
from mstar_rt.worker.loaded import load_model
from tests.models import bagel_tiny
from tests.models.walk_driver import WalkDriver


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bagel_tiny.write_folder(tmp_path_factory.mktemp("bagel") / "tiny")


def test_what_is_declared(folder: Path) -> None:
    model = load_declare("bagel")("tiny", str(folder), {})
    assert [task.name for task in model.tasks] == [
        "chat", "describe_image", "text_to_image", "edit_image", "think_and_draw",
    ]  # fmt: skip
    assert all(task.criticality == "generation" for task in model.tasks)
    assert model.facts == {"max_sequence_tokens": 512, "token_pixels": 4, "max_image_side": 64}
    assert model.generation is not None
    assert model.generation.images is not None
    assert model.generation.images.default_size == (32, 32)
    usual = {param.name: param.default for param in model.task("edit_image").params}
    assert (usual["text_guidance"], usual["image_guidance"], usual["guidance_start"]) == (4.0, 2.0, 0.0)
    assert usual["renormalization"] == "text_channel"


def test_without_a_prompt_for_plans_there_are_none(folder: Path) -> None:
    model = declare("tiny", str(folder), {"think_prompt": ""})
    assert "think_and_draw" not in [task.name for task in model.tasks]
    assert "thought" not in [node.name for node in model.graph.nodes]
    assert model.generation is not None
    assert model.generation.images is not None
    assert model.generation.images.think == ""


@pytest.mark.parametrize(
    ("checkpoint", "options", "message"),
    [
        ("tiny", {"checkpoint": "shapes"}, "both a checkpoint and the option"),
        ("", {"checkpoint": "shape"}, "did you mean 'shapes'"),
        ("tiny", {"max_sequence_tokens": 513}, "from 2 to 512"),
        ("tiny", {"think_prompt": 3}, "option 'think_prompt' is 3, expected a text"),
        ("tiny", {"steps": 3}, "has no option 'steps'"),
        ("none", {}, "there is no .*llm_config.json"),
        ("", {"checkpoint": ["shapes"]}, r"option 'checkpoint' is \['shapes'\], expected a name as text: shapes"),
        ("shapes", {}, r"there is no folder /.*shapes; .* options: \{checkpoint: shapes\} in its place"),
        ("tiny", {"think_prompt": " \n"}, "'think_prompt' has no word in it"),
        ("tiny", {"think_prompt": "<|im_start|> plan"}, r"'think_prompt' has '<\|im_start\|>' in it"),
    ],
)
def test_options_of_a_deployment(folder: Path, checkpoint: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare("tiny", str(folder.parent / checkpoint) if checkpoint else "", options)


LONG_PROMPT = "Think of what it is. " * 12


@pytest.mark.parametrize(
    ("options", "task", "least", "advice"),
    [
        ({"think_prompt": ""}, "edit_image", 26, ""),
        ({"think_prompt": LONG_PROMPT}, "think_and_draw", 226, ", or shorten 'think_prompt'"),
    ],
)
def test_contexts_too_short_for_any_request_are_refused_by_check_without_weights(
    folder: Path, options: dict[str, Any], task: str, least: int, advice: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for file in folder.glob("*.json"):
        shutil.copy(file, tmp_path)
    model = {"name": "tiny", "family": "bagel", "checkpoint": str(tmp_path)}
    deployment = {"name": "t", "models": [model], "workers": [{"rank": 0}]}
    for longest, status in ((least, 0), (least - 1, 2)):
        model["options"] = {**options, "max_sequence_tokens": longest}  # type: ignore[assignment]
        (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(deployment))
        assert main(["check", str(tmp_path / "deployment.yaml")]) == status
    assert (
        f"'max_sequence_tokens' is {least - 1}, but the shortest request of task {task!r} takes {least}: set it to at "
        f"least {least}{advice}"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(("prompt", "least"), [("", 26), (LONG_PROMPT, 226)])
def test_what_check_lets_in_can_warm_up_and_no_less(
    folder: Path, prompt: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bagel_model, "check_room", lambda *_: None)
    _warm_up(declare("tiny", str(folder), {"think_prompt": prompt, "max_sequence_tokens": least}))
    with pytest.raises(InvalidArgument):
        _warm_up(declare("tiny", str(folder), {"think_prompt": prompt, "max_sequence_tokens": least - 1}))


def _warm_up(model: ServedModel) -> None:
    driver = WalkDriver(load_model(model, WorkerConfig(rank=0, kv_memory_mb=4)))
    for task in model.tasks:
        tensors = {name: torch.from_numpy(each) for name, each in zeros(task).items()}
        driver.run_one(task.name, tensors, **warm_up_options(model, task))


def test_a_tokenizer_without_the_tokens_of_images_is_refused(folder: Path, tmp_path: Path) -> None:
    words = bagel_tiny.tokenizer().to_str().replace("<|vision_end|>", "<|vision_out|>")
    (tmp_path / "tokenizer.json").write_text(words)
    with pytest.raises(ConfigError, match=r"no special token '<\|vision_end\|>'"):
        BagelTokens(tmp_path, 200)
    tokens = BagelTokens(folder, 200)
    assert (tokens.begin_id, tokens.end_id, tokens.image_ids) == (196, 197, bagel_tiny.IMAGE_IDS)
    assert tokens.wrapped("+,-") == [196, 10, 11, 12, 197]


def test_the_graph_is_drawn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "deployment.yaml"
    config.write_text(
        f"name: t\nmodels: [{{name: tiny, family: bagel, checkpoint: {folder}}}]\nworkers: [{{rank: 0}}]\n"
    )
    for layout in ("text", "mermaid", "svg"):
        assert main(["graph", "tiny", "--config", str(config), "--format", layout]) == 0
        drawing = capsys.readouterr().out
        assert all(
            name in drawing for name in ("flow_without_text", "read_latents", "decode_image", "num_denoise_steps")
        )


def test_branches_and_every_other_node_may_be_on_ranks_of_their_own(folder: Path) -> None:
    model = declare("tiny", str(folder), {})
    names = [node.name for node in model.graph.nodes]
    rules = [
        PlacementRule("tiny", nodes=(name,), ranks=(rank,)) for rank, name in enumerate([*names, "flow_without_text"])
    ]
    placement = place({"tiny": PlacedModel(model.graph, model.cache_lifetimes)}, rules, range(len(rules)))
    ranks = dict(
        zip(
            [node.name for node in placement.program("tiny", "image_gen").nodes],
            placement.use_ranks("tiny", "image_gen"), strict=True,
        )
    )  # fmt: skip
    assert len({ranks[name] for name in ("flow", "flow_without_text", "guide", "report", "noise")}) == 5


def test_declaring_needs_no_torch(folder: Path) -> None:
    script = f"import sys; from generators.bagel.model import declare; declare('t', {str(folder)!r}, {{'max_sequence_tokens': 30}}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], timeout=100).returncode == 0
