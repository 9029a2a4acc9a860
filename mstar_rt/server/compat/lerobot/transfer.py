"""One payload in parts: BEGIN, MIDDLE, ..., END, or a single END."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import lerobot_pb2 as wire

PART_BYTES = 2 << 20
"""What RobotClient puts into one part; a smaller payload is one part with state END."""


async def assembled(parts: AsyncIterator[wire.Observation], max_bytes: int) -> bytes:
    """Raises:  InvalidArgument: parts out of order, empty ones, one after the end, too many bytes, or no end."""
    received: list[bytes] = []
    num_bytes, ended = 0, False
    async for part in parts:
        if ended:
            raise InvalidArgument("a part came after the last one: expected one observation a call")
        _check_order(part.transfer_state, is_first=not received)
        data = part.data
        num_bytes += len(data)
        if not data:
            raise InvalidArgument(f"part {len(received)} of the observation is empty")
        if num_bytes > max_bytes:
            raise InvalidArgument(
                f"the observation has over {max_bytes} bytes (server.max_message_mb): send smaller images"
            )
        received.append(data)
        ended = part.transfer_state == wire.TRANSFER_END
    if not ended:
        raise InvalidArgument(f"the observation ended after {len(received)} parts without one of state END")
    return received[0] if len(received) == 1 else b"".join(received)


def _check_order(state: wire.TransferState, is_first: bool) -> None:
    expected = (wire.TRANSFER_BEGIN, wire.TRANSFER_END) if is_first else (wire.TRANSFER_MIDDLE, wire.TRANSFER_END)
    if state not in expected:
        names = " or ".join(wire.TransferState.Name(each) for each in expected)
        raise InvalidArgument(f"a part of the observation has state {state}, expected {names}")
