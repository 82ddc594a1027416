"""The official SDK as client: what it parses, what it raises, and that it repeats nothing that is the client's fault."""
import json

import httpx2 as httpx
import openai
import pytest

from serving import Server

MESSAGES = [{"role": "user", "content": "Tell me a story about a frog"}]


def chat(client, **more):
    return client.chat.completions.create(model="demo", messages=MESSAGES, **{"max_tokens": 8, "seed": 5} | more)


def test_answers_parse_into_its_types(client):
    answer = chat(client, n=2, logprobs=True, top_logprobs=2)
    assert answer.object == "chat.completion" and [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        # Every generated token is reported, those of the message's header too.
        assert "".join(token.token for token in choice.logprobs.content).endswith(choice.message.content)
        assert all(len(token.top_logprobs) == 2 and bytes(token.bytes).decode() == token.token for token in choice.logprobs.content)
    text = client.completions.create(model="demo", prompt="Once upon", max_tokens=4, logprobs=2, echo=True)
    assert text.choices[0].text.startswith("Once upon") and text.choices[0].logprobs.token_logprobs[0] is None
    assert text.usage.total_tokens == text.usage.prompt_tokens + 4
    assert text.usage.prompt_tokens_details.cached_tokens < text.usage.prompt_tokens
    assert [model.id for model in client.models.list()] == ["demo"] and client.models.retrieve("demo").id == "demo"


def test_streams_parse_and_their_usage_is_last(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8 and not chunks[-1].choices
    ended = chat(client, stop=[" time"], max_tokens=100).choices[0].message.content
    with client.chat.completions.stream(model="demo", messages=MESSAGES, max_tokens=100, seed=5, stop=[" time"]) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == ended  # raises where an answer was cut
    pieces = [chunk.choices[0].text for chunk in client.completions.create(model="demo", prompt="Once", max_tokens=5, stream=True)]
    assert len(pieces) == 5


def test_headers_and_request_ids_are_there(client):
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "mine"},
                                                           extra_body={"zebra": 1})
    assert raw.headers["x-request-id"] == "mine" and raw.headers["x-nibble-ignored"] == "zebra" and raw.parse()._request_id == "mine"


def test_a_model_with_a_slash_in_its_name_is_found():
    server = Server("--served-model-name", "org/name v1?#%")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    assert client.models.retrieve("org/name v1?#%").id == "org/name v1?#%"  # sent as org%2Fname%20v1%3F%23%25
    for other in ("org/name", "org%2Fname v1?#%", "name v1?#%"):
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(other)
    assert server.get("/v1/models/org/name%20v1%3f%23%25")[0] == 200
    assert server.get("/v1%2Fmodels")[0] == 404, "an escaped slash separates nothing"
    assert server.get("/v1/models/%")[0] == 400 and server.get("/v1/models/%00")[0] == 400
    assert server.stop() == 0


@pytest.mark.parametrize("kind, call", [
    (openai.BadRequestError, lambda c: chat(c, temperature=9)),
    (openai.BadRequestError, lambda c: chat(c, tools=[{"type": "browser"}])),
    (openai.BadRequestError, lambda c: c.completions.create(model="demo", prompt="word " * 2000)),
    (openai.BadRequestError, lambda c: list(chat(c, stream=True, n=200))),
    (openai.NotFoundError, lambda c: c.chat.completions.create(model="gpt-4", messages=MESSAGES)),
    (openai.NotFoundError, lambda c: c.responses.create(model="gpt-4", input="hi")),
    (openai.NotFoundError, lambda c: c.embeddings.create(model="demo", input="hi")),
])
def test_a_clients_fault_is_its_exception_and_is_sent_once(server, kind, call):
    sent = []
    http = httpx.Client(event_hooks={"request": [lambda request: sent.append(request.url.path)]})
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=2, http_client=http)
    with pytest.raises(kind) as error:
        call(client)
    assert len(sent) == 1 and error.value.body["message"] and {"type", "param", "code"} <= set(error.value.body)


def test_the_async_client_and_many_choices(server):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=4, seed=i, n=2) for i in range(12)))
            stream = await client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=300, stream=True, extra_body={"ignore_eos": True})
            async for _ in stream:
                break
            await stream.close()
            return answers

    assert all(len(answer.choices) == 2 for answer in asyncio.run(ask()))
    assert json.loads(server.get("/health")[1])["status"] == "ok"
