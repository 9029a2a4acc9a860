"""What a deployment may say, what is declared of it, and that it can be drawn and placed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generators.bagel.model import declare
from generators.bagel.tokens import BagelTokens
from mstar_rt.cli import main
from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError
from mstar_rt.placement import PlacedModel, place
from mstar_rt.registry import load_declare
from tests.models import bagel_tiny


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
    ],
)
def test_options_of_a_deployment(folder: Path, checkpoint: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare("tiny", str(folder.parent / checkpoint) if checkpoint else "", options)


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
    script = f"import sys; from generators.bagel.model import declare; declare('t', {str(folder)!r}, {{}}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], timeout=100).returncode == 0
