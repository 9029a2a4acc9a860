"""Which rank runs a node: rules of the deployment file to one rank per node, refused at load when they cannot work."""

from mstar_rt.placement.place import Placement, place

__all__ = ["Placement", "place"]
