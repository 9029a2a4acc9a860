"""A walk made executable: a flat program, its parts on several ranks, and one request's progress through it as a state
machine."""

from mstar_rt.graph.cache_order import siblings_of
from mstar_rt.program.caches import check_caches
from mstar_rt.program.compile import compile_walk
from mstar_rt.program.crossings import Crossing, crossings
from mstar_rt.program.cut import cut, ranks_of
from mstar_rt.program.firing import Emission, Firing, Progress, Send
from mstar_rt.program.program import Program, ProgramEdge, ProgramLoop, ProgramNode, ProgramStream
from mstar_rt.program.run import WalkRun

__all__ = [
    "Crossing", "Emission", "Firing", "Program", "ProgramEdge", "ProgramLoop", "ProgramNode", "ProgramStream",
    "Progress", "Send", "WalkRun", "check_caches", "compile_walk", "crossings", "cut", "ranks_of", "siblings_of",
]  # fmt: skip
