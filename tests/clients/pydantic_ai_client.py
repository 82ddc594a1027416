"""pydantic-ai: typed outputs by schema and by a forced call, over chats, responses and messages."""
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from checks import STORY, run_checks, url

OPENAI = OpenAIProvider(base_url=url() + "/v1", api_key="none")
CHAT, RESPONSES = OpenAIChatModel("demo", provider=OPENAI), OpenAIResponsesModel("demo", provider=OPENAI)


def messages():
    import anthropic
    return AnthropicModel("demo", provider=AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=url(), api_key="none", max_retries=0)))


class Animal(BaseModel, extra="forbid"):
    """An animal."""
    kind: Literal["frog", "bear", "cat"]
    green: bool


def agent(model, **more):
    return Agent(model, model_settings={"max_tokens": 1200}, retries=0, **more)


def check_texts():
    for model in (CHAT, RESPONSES, messages()):
        assert agent(model).run_sync(STORY).output


def check_outputs_by_schema():
    for model in (CHAT, RESPONSES):
        assert isinstance(agent(model, output_type=NativeOutput(Animal)).run_sync(STORY).output, Animal)


def check_outputs_by_a_call():
    for model in (CHAT, RESPONSES, messages()):
        assert isinstance(agent(model, output_type=ToolOutput(Animal)).run_sync(STORY).output, Animal)


def check_a_streamed_output():
    result = agent(CHAT, output_type=NativeOutput(Animal)).run_stream_sync(STORY)
    assert isinstance(result.get_output(), Animal)


if __name__ == "__main__":
    run_checks(globals())
