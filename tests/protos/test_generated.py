"""The committed Python of the wire API is what the .proto files say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

PROTOS = Path(__file__).parents[2] / "protos"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protos_generate", PROTOS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_regeneration_gives_the_committed_files(generator: ModuleType, tmp_path: Path) -> None:
    generated, committed = generator.generate(tmp_path), generator.committed()
    assert generated.keys() == committed.keys()
    differing = [name for name, text in generated.items() if committed[name] != text]
    assert not differing, f"run `python protos/generate.py`: {differing} differ"


def test_every_service_is_generated() -> None:
    from mstar_rt.protos import control_pb2, generation_pb2, runtime_pb2, world_model_pb2

    services = {
        service.full_name: [method.name for method in service.methods]
        for module in (control_pb2, generation_pb2, runtime_pb2, world_model_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert services == {
        "mstar.v1.Robot": ["Control"],
        "mstar.v1.Generation": ["Generate"],
        "mstar.v1.Runtime": ["ServerInfo", "ListModels", "DescribeModel", "Stats", "Sessions", "Trace", "Drain"],
        "mstar.v1.WorldModel": ["Encode", "Rollout", "Plan", "Session"],
    }


@pytest.mark.parametrize("proto", sorted(PROTOS.glob("mstar/v1/*.proto")), ids=lambda path: path.name)
def test_optional_scalars_say_what_unset_means(proto: Path) -> None:
    """Presence is only worth having if its absence is explained, on the field or in the comment above it."""
    lines = proto.read_text().splitlines()
    unexplained = []
    for i, line in enumerate(lines):
        if not re.match(r"\s+optional ", line):
            continue
        block = [line]
        for above in reversed(lines[:i]):
            if not above.strip() or re.match(r"(message|enum) ", above):
                break
            block.append(above)
        if not re.search(r"[Uu]nset|[Aa]bsent|default|only|None", " ".join(block) + _message_comment(lines, i)):
            unexplained.append(f"{proto.name}:{i + 1}: {line.strip()}")
    assert not unexplained


def _message_comment(lines: list[str], index: int) -> str:
    """The comment above the message that line `index` is in."""
    start = next(i for i in range(index, -1, -1) if re.match(r"message ", lines[i]))
    comment: list[str] = []
    for above in reversed(lines[:start]):
        if not above.startswith("//"):
            break
        comment.append(above)
    return " ".join(comment)
