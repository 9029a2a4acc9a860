"""What a user of the published V-JEPA 2-AC runs, written from its description, and the best loop without a runtime.

`predictor`, `rollout` and `planner` are the public repository's way: plain torch layers, everything recomputed at every
step. `cached` is the best hand-written loop with a cache, in one process and without a runtime.
"""
