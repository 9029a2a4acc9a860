"""Orpheus: a language model that writes sound, streamed into the codec that makes it heard."""
