"""Backend plugin."""
