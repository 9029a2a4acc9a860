"""A walk made executable: a flat program, and one request's progress through it as a state machine."""

from mstar_rt.program.compile import compile_walk
from mstar_rt.program.firing import Emission, Firing, Progress
from mstar_rt.program.program import Program, ProgramEdge, ProgramLoop, ProgramNode
from mstar_rt.program.run import WalkRun

__all__ = [
    "Emission", "Firing", "Program", "ProgramEdge", "ProgramLoop", "ProgramNode", "Progress", "WalkRun",
    "compile_walk",
]  # fmt: skip
