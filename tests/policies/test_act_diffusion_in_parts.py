"""ACT and Diffusion Policy act as if at once where their networks run layer by layer, in batches of robots, too."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from published_policies import Published, published
from walk_driver import Request, WalkDriver, drive

from mstar_rt.nn.resnet import NUM_LAYERS, ResNet18
from policies.act.model import declare as declare_act
from policies.diffusion.model import declare as declare_diffusion

CASES = {"act two_cameras": declare_act, "diffusion ddim": declare_diffusion}
NUM_STEPS = {"act two_cameras": 4, "diffusion ddim": 3 * 8}
"""Of the node that acts, where it does one item at a time."""


def case_of(name: str, folder: Path) -> tuple[Published, WalkDriver]:
    family, _, case = name.partition(" ")
    one = published(f"{family}_tiny", case)
    return one, drive(CASES[name](case, str(one.write(folder)), {}))


def actions(driver: WalkDriver, requests: list[Request], stagger: int = 0) -> list[torch.Tensor]:
    return [served.emitted["actions"][0] for served in driver.run(*requests, stagger=stagger)]


@pytest.mark.parametrize("name", CASES)
def test_layers_in_any_parts_lead_to_the_same_actions(name: str, tmp_path: Path) -> None:
    """Calls of one step stand at layers of their own, and some run whole."""
    one, driver = case_of(name, tmp_path)
    params = {"num_denoise_steps": 3} if name.startswith("diffusion") else {}
    requests = [Request("act", one.inputs(index), params) for index in range(2)]
    whole = [actions(driver, [request])[0] for request in requests]
    draw = random.Random(1)
    for share_of, stagger in ((lambda left: 1, 0), (lambda left: draw.randint(1, left), 1)):
        driver.batches.clear()
        driver.share_of = share_of
        for got, wanted in zip(actions(driver, requests, stagger), whole, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
        nodes = [node for node, _ in driver.batches]
        if not stagger:
            assert nodes.count("see") % NUM_LAYERS == 0  # once, or for each of two cameras
            assert nodes.count("denoise" if "diffusion" in name else "act") == NUM_STEPS[name]


def test_the_layers_of_a_network_that_sees_keep_how_images_lie() -> None:
    """Channels last: on a CPU convolutions of other tensors take half as long again."""
    network, images = ResNet18().settle(), torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    whole, x = network(images), images
    for layer in range(NUM_LAYERS):
        x = torch.cat(network(x, range(layer, layer + 1)).split(1))
        assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x, whole, rtol=0, atol=1e-5)
