"""Which rank runs a node: rules of the deployment file to ranks per node use, refused at load when they cannot work."""

from mstar_rt.placement.place import PlacedModel, place
from mstar_rt.placement.placement import Placement, Ranks, ReplicaGroup
from mstar_rt.placement.route import Route, WalkPlan

__all__ = ["PlacedModel", "Placement", "Ranks", "ReplicaGroup", "Route", "WalkPlan", "place"]
