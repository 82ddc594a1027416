"""One server for the tests that ask for nothing special of it."""
import pytest

from watched_server import serving


@pytest.fixture(scope="session")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def impatient():
    """A server whose clock for slow clients is turned: a second is what half a minute is to others."""
    with serving("--client-timeout", 1, "--kv-cache-tokens", 4096) as server:
        yield server
