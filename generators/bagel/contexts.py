"""Where the contexts of a request stand, as it goes from node to node. No torch but in annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from generators.bagel.walks import WITHOUT_IMAGE, WITHOUT_TEXT
from mstar_rt.errors import Internal

if TYPE_CHECKING:
    import torch

NOT_READ = -1
"""No step of the request looks from this context, so it is not there."""
IS_MAIN = -2
"""This context would be main itself: there is no image, and nothing was planned."""


class Positions(NamedTuple):
    """The rope position of the next token of each context, or why there is no such context.

    A token of text is one position on; an image, with the tokens around it, is one position in all.
    """

    main: int = 0
    without_text: int = NOT_READ
    without_image: int = NOT_READ

    def tensor(self) -> torch.Tensor:
        import torch

        return torch.tensor(self)

    def of(self, label: str) -> int:
        """Of a context that a branch looks from.

        Raises: Internal: it was never filled. An image without its guidance would look like one with it.
        """
        position = {WITHOUT_TEXT: self.without_text, WITHOUT_IMAGE: self.without_image}.get(label, self.main)
        if position < 0:
            raise Internal(f"the context {label!r} is needed for guidance, but it was not filled")
        return position


def read_positions(tensor: torch.Tensor) -> Positions:
    return Positions(*tensor.tolist())
