"""OpenAI's HTTP API for models that write or speak, see docs/http.md."""
