"""A stand-in hub for each test, and the program that pulls from it."""
import pytest
from hub import Hub, Repository
from pulling import COMMIT, Puller, example_files


@pytest.fixture
def hub():
    hub = Hub()
    hub.repositories["org/name"] = Repository({COMMIT: example_files()}, {"main": COMMIT})
    yield hub
    hub.close()


@pytest.fixture
def puller(hub, tmp_path):
    return Puller(hub, tmp_path)
