"""Settings for every test of the workspace."""

from hypothesis import settings

settings.register_profile("isthmus", deadline=None)  # no time limits: the machine may be busy
settings.load_profile("isthmus")
