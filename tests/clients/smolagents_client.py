"""smolagents: texts, streams, an agent's calls."""
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole

from checks import STORY, run_checks, url

ASK = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": STORY}])]
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["frog", "bear"]}}, "required": ["kind"], "additionalProperties": False}


@tool
def look(closely: bool) -> str:
    """Looks.

    Args:
        closely: Whether it is worth it.
    """
    return "green"


def model(**more):
    return OpenAIModel("demo", api_base=url() + "/v1", api_key="none", **{"max_tokens": 1200} | more)


def check_texts_whole_and_streamed():
    whole = model(max_tokens=12).generate(ASK).content
    assert whole == "".join(delta.content or "" for delta in model(max_tokens=12).generate_stream(ASK))
    assert model(max_tokens=1200).generate(ASK, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}).content.startswith("{")


def check_a_call_is_forced():
    call = model().generate(ASK, tools_to_call_from=[look]).tool_calls[0]
    assert call.function.name == "look" and isinstance(call.function.arguments, (dict, str))


def check_an_agent_calls_and_goes_on():
    # A seed with which the demo ends its arguments in so few tokens.
    agent = ToolCallingAgent(tools=[look], model=model(max_tokens=120, temperature=1, seed=2), max_steps=1, verbosity_level=0, instructions="Be short.")
    agent.prompt_templates["system_prompt"] = "Call a tool."  # its own is longer than the demo's context
    agent.run(STORY)
    assert any(getattr(step, "tool_calls", None) for step in agent.memory.steps), agent.memory.steps


if __name__ == "__main__":
    run_checks(globals())
