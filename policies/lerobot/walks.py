"""What the graphs of these policies have in common: every camera is seen by a use of one node. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.graph import GraphNode, NodeUse, Parallel, Section

SEE = GraphNode("see", ("image",), ("features",), doc="one camera's image, or its last few -> features")
SEE_PREFIX = "see_"


def eyes(cameras: Sequence[str]) -> Section | NodeUse:
    """All cameras side by side, so that those of one size share a step; `see` knows by the use's name which it has."""
    uses = [
        SEE.bind({"image": f"image_{camera}"}, {"features": features_of(camera)}, alias=f"{SEE_PREFIX}{camera}")
        for camera in cameras
    ]
    return Parallel(*uses) if len(uses) > 1 else uses[0]


def camera_of(use: str) -> str:
    """Which camera a use of `see` looks at."""
    return use.removeprefix(SEE_PREFIX)


def features_of(camera: str) -> str:
    return f"features_{camera}"
