"""The ``isthmus`` command: the same verbs and flags on every backend."""
