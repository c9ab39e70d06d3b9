"""Checkpoints in, graph sets out."""
