"""openai-agents: runs over responses and over chats, typed outputs, a tool that is called and answered."""
import asyncio
from typing import Literal

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel

from checks import STORY, run_checks, url

set_tracing_disabled(True)


def models():
    """New ones: a client belongs to one event loop."""
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        yield kind("demo", openai.AsyncOpenAI(base_url=url() + "/v1", api_key="none", max_retries=0))


class Animal(BaseModel, extra="forbid"):
    kind: Literal["frog", "bear", "cat"]
    green: bool


def check_typed_outputs():
    for model in models():
        agent = Agent(name="A", instructions="Be short.", model=model, output_type=Animal, model_settings=ModelSettings(max_tokens=1200))
        assert isinstance(Runner.run_sync(agent, STORY).final_output, Animal)


def check_a_streamed_run():
    async def run(model):
        agent = Agent(name="A", model=model, output_type=Animal, model_settings=ModelSettings(max_tokens=1200))
        result = Runner.run_streamed(agent, STORY)
        return [event.type async for event in result.stream_events()], result.final_output

    for model in models():
        kinds, output = asyncio.run(run(model))
        assert "raw_response_event" in kinds and isinstance(output, Animal)


def check_a_tool_is_called_and_its_result_ends_the_run():
    seen = []

    @function_tool
    def look(animal: Literal["frog", "bear"], closely: bool) -> str:
        """Looks at an animal."""
        seen.append((animal, closely))
        return "green"

    for model in models():
        agent = Agent(name="A", model=model, tools=[look], model_settings=ModelSettings(max_tokens=1200, tool_choice="required"),
                      tool_use_behavior="stop_on_first_tool")
        assert Runner.run_sync(agent, STORY).final_output == "green"
    assert len(seen) >= 2 and all(animal in ("frog", "bear") for animal, _ in seen)


def check_a_tools_result_goes_back():
    @function_tool
    def look(closely: bool) -> str:
        """Looks."""
        return "green"

    for model in models():  # after its call the choice is automatic again, and the answer typed
        agent = Agent(name="A", model=model, tools=[look], model_settings=ModelSettings(max_tokens=400, tool_choice="required"))
        result = Runner.run_sync(agent, STORY, max_turns=3)
        assert result.final_output


if __name__ == "__main__":
    run_checks(globals())
