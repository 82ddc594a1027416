"""One served demo model for all tests of the API; its context is short, so that an answer without an end is one."""
import openai
import pytest

from serving import Server


@pytest.fixture(scope="session")
def server():
    server = Server("--max-model-len", 256, "--max-queue", 900)
    yield server
    assert server.process.poll() is None, "nothing that a client sent ended it"
    assert server.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
