"""What a dialect's clients send and get, in words."""

from __future__ import annotations

from collections.abc import Iterator

from mstar_rt.server.binding import address_text
from mstar_rt.server.compat.mapping import Mapping


def described(mapping: Mapping) -> Iterator[str]:
    """Lines for people; the first names the dialect."""
    dialect, layout = mapping.dialect, mapping.layout
    where = "the server's port" if dialect.kind == "lerobot" else address_text(dialect.host, dialect.own_port)
    yield (
        f"dialect {dialect.kind} on {where}: policy {mapping.model.name}, {dialect.execute} actions of a chunk at "
        f"{dialect.control_hz:g} Hz, {'with keys' if dialect.api_keys_file else 'no keys'}"
    )
    for camera in mapping.policy.cameras:
        source = layout.cameras.get(camera.name)
        if source is None:
            yield f"  camera {camera.name}: masked"
        else:
            resize = "" if source.resize == "none" else f", resized ({source.resize})"
            yield f"  camera {camera.name}: {source.key!r}, {source.layout} {source.values}{resize}"
    if layout.state:
        yield f"  state: {', '.join(f'{part.key!r} {part.size}' for part in layout.state)}"
    if layout.instruction is not None:
        default = f", else {layout.instruction.default!r}" if layout.instruction.default else ""
        yield f"  instruction: {layout.instruction.key!r}{default}"
    actions = layout.actions.split or {layout.actions.key: mapping.num_actions}
    yield f"  actions: {', '.join(f'{key!r} {size}' for key, size in actions.items())}"
    if layout.ignore:
        yield f"  not used: {', '.join(map(repr, layout.ignore))}"
