"""`mstar-rt top`: what a server does now, in a terminal. A client like any other: no torch, nothing of the runtime."""
