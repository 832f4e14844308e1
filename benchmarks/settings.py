"""The project's settings, for servers whose views stand in for the product's: BENCHMARK_URLS names them."""

import os

from project.settings import *  # noqa: F403

ROOT_URLCONF = os.environ["BENCHMARK_URLS"]
# Where a thread holds its connection for a whole request, half a second isn't enough for its turn.
DATABASES["default"]["OPTIONS"]["pool"] |= {"max_size": 16, "timeout": 10}  # noqa: F405
