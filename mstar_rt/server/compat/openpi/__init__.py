"""The websocket protocol of openpi's policy server, which SGLang and vLLM-Omni serve too."""
