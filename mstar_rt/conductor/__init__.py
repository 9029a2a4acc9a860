"""One per deployment: requests and sessions, which walk comes next, who is alive."""

from mstar_rt.conductor.conductor import Conductor

__all__ = ["Conductor"]
