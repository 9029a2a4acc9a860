"""Generate mstar_rt/protos/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py from protos/mstar/v1/*.proto.

python protos/generate.py            # rewrite the committed files
python protos/generate.py --check    # exit code 1 if they differ from what would be generated
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
PACKAGE_FOLDER = PROTO_ROOT.parent / "mstar_rt" / "protos"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")

# protoc derives Python modules from the path of the .proto file; ours live in mstar_rt.protos.
_IMPORT = re.compile(r"^from mstar\.v1 import (\w+_pb2) as (\w+)$", re.MULTILINE)


def generate(target: Path) -> dict[str, str]:
    """Compile all protos into `target`; returns {file name: text}, and writes nothing outside of `target`."""
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.glob("mstar/v1/*.proto"))
    bundled = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{PROTO_ROOT}", f"-I{bundled}"]
    arguments += [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    status = protoc.main(["protoc", *arguments, *sources])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    texts = {path.name: _rewrite_imports(path.read_text()) for path in sorted((target / "mstar/v1").iterdir())}
    return {name: text for name, text in texts.items() if not _declares_nothing(name, text)}


def committed() -> dict[str, str]:
    """The generated files as they are in the package now."""
    return {path.name: path.read_text() for kind in GENERATED for path in sorted(PACKAGE_FOLDER.glob(kind))}


def _rewrite_imports(text: str) -> str:
    return _IMPORT.sub(r"from mstar_rt.protos import \1 as \2", text)


def _declares_nothing(name: str, text: str) -> bool:
    """protoc writes a _grpc file even for a .proto without a service."""
    return name.endswith("_grpc.py") and "\nclass " not in text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        files = generate(Path(folder))
    if check:
        differing = sorted(
            name for name in files.keys() | committed().keys() if files.get(name) != committed().get(name)
        )
        print("\n".join(f"differs: {name}" for name in differing) or "generated files are up to date")
        return 1 if differing else 0
    for stale in committed().keys() - files.keys():
        (PACKAGE_FOLDER / stale).unlink()
    for name, text in files.items():
        (PACKAGE_FOLDER / name).write_text(text)
    print(f"wrote {len(files)} files to {PACKAGE_FOLDER.relative_to(PROTO_ROOT.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
