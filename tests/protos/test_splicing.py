"""What is spliced parses as what protobuf itself would have encoded."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import task_pb2, tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array, tensor_from_bytes
from mstar_rt.protos.splicing import tensor_parts, with_field


@pytest.mark.parametrize("num_bytes", [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21])
def test_lengths_of_every_size(num_bytes: int) -> None:
    """A length takes one more byte at each power of 128."""
    data = bytes(i % 251 for i in range(num_bytes))
    spliced = tensor_pb2.Tensor.FromString(b"".join(tensor_parts("uint8", (num_bytes,), data)))
    assert spliced == tensor_from_bytes("uint8", (num_bytes,), data)


@pytest.mark.parametrize("shape", [(), (3,), (2, 64, 96)])
def test_a_tensor_within_messages(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    pose = tensor_from_array(np.ones(7, np.float32))
    step = wire.RolloutStep(step=3, pose=pose, extra={"more": pose})
    parts = with_field(step, "latent", tensor_parts("float32", shape, array.tobytes()))
    parsed = wire.SessionResponse.FromString(b"".join(with_field(wire.SessionResponse(answers=300), "step", parts)))
    step.latent.CopyFrom(tensor_from_array(array))
    assert parsed == wire.SessionResponse(answers=300, step=step)
    np.testing.assert_array_equal(array_from_tensor(parsed.step.latent, "latent"), array)


def test_an_empty_message_is_there_all_the_same() -> None:
    parsed = wire.RolloutResponse.FromString(b"".join(with_field(wire.RolloutResponse(), "step", [b""])))
    assert parsed.WhichOneof("answer") == "step"


def test_fields_with_large_numbers_and_dtypes_that_numpy_lacks() -> None:
    """A field number above 15 takes two bytes."""
    bits = np.arange(4, dtype=np.uint16).tobytes()
    tensor = tensor_pb2.Tensor.FromString(b"".join(tensor_parts("bfloat16", (4,), bits)))
    assert tensor == tensor_from_bytes("bfloat16", (4,), bits)
    options = wire.PlannerOptions.FromString(
        b"".join(with_field(wire.PlannerOptions(seed=5), "action_low", tensor_parts("bfloat16", (4,), bits)))
    )
    assert options == wire.PlannerOptions(seed=5, action_low=tensor)
    output = task_pb2.TaskOutput(name="latents", iteration=(1, 2), walk="encode")
    spliced = with_field(output, "tensor", tensor_parts("bfloat16", (4,), bits))
    output.tensor.CopyFrom(tensor)
    assert task_pb2.TaskOutput.FromString(b"".join(spliced)) == output


def test_a_dtype_that_the_wire_lacks() -> None:
    with pytest.raises(InvalidArgument, match="dtype complex64 cannot be sent"):
        tensor_parts("complex64", (1,), bytes(8))
