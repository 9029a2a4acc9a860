"""The tabletop by a name that Gymnasium knows:

gymnasium.make("sim_bridge.environments:mstar/Tabletop-v0", task="push_left")
gymnasium.make_vec("sim_bridge.environments:mstar/Tabletop-v0", num_envs=4, vectorization_mode="sync", task="touch")
"""

from __future__ import annotations

import gymnasium

TABLETOP = "mstar/Tabletop-v0"

gymnasium.register(TABLETOP, entry_point="sim_bridge.instruction_env:InstructionEnv")
