"""Training of the small tabletop world model: `python -m world_models.vjepa2.train --help`."""
