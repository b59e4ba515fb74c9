"""Corpora larger than memory: token ids in shards on disk."""
