"""OpenAI's HTTP API for models that write, speak or draw, see docs/http.md."""
