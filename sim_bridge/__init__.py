"""Simulated robots as clients of the runtime: worlds, tasks, a fixed-rate control loop, a recorder. Needs no torch."""
