"""Settings for every test of the workspace."""

import signal

from hypothesis import settings

settings.register_profile("isthmus", deadline=None)  # no time limits: the machine may be busy
settings.load_profile("isthmus")

# A shell that starts this in the background leaves SIGINT ignored, also in the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
