"""For one test: the process that runs QNN ends before it has begun."""

import os

os._exit(3)
