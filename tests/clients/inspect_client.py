"""inspect-ai: a task with a scorer, answers by schema, forced calls, over chats, responses and messages."""
import asyncio
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from inspect_ai.tool import ToolFunction, ToolInfo, ToolParam, ToolParams
from inspect_ai.util import json_schema
from pydantic import BaseModel

from checks import STORY, run_checks, url


class Animal(BaseModel, extra="forbid"):
    green: bool


LOOK = ToolInfo(name="look", description="Looks.", parameters=ToolParams(properties={"closely": ToolParam(type="boolean", description="How.")},
                                                                        required=["closely"]))


def models(**more):
    config = GenerateConfig(**{"max_tokens": 1200, "max_retries": 0} | more)
    yield get_model("openai-api/nibble/demo", base_url=url() + "/v1", api_key="none", config=config)
    yield get_model("openai/demo", base_url=url() + "/v1", api_key="none", config=config, responses_api=True)
    yield get_model("anthropic/demo", base_url=url(), api_key="none", config=config)


def ask(model, messages=STORY, **more):
    return asyncio.run(model.generate(messages, **more))


def check_a_task_is_run_and_scored():
    task = Task(dataset=[Sample(input=STORY, target="a"), Sample(input="And a bear?", target="a")], solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as folder:
        log = eval(task, model=next(models(max_tokens=40)), log_dir=folder, display="none")[0]
        assert log.status == "success" and len(log.samples) == 2, log.error


def check_texts():
    for model in models(max_tokens=12):
        answer = ask(model)
        assert answer.completion and answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 12


def check_an_answer_by_schema():
    config = GenerateConfig(response_schema=ResponseSchema(name="animal", json_schema=json_schema(Animal)))
    for model in list(models())[:2]:
        assert isinstance(Animal.model_validate_json(ask(model, config=config).completion).green, bool)


def check_forced_calls():
    for model in models():
        for choice in ("any", ToolFunction(name="look")):
            answer = ask(model, tools=[LOOK], tool_choice=choice)
            call = answer.message.tool_calls[0]
            assert call.function == "look" and isinstance(call.arguments["closely"], bool) and not call.parse_error
        results = [ChatMessageTool(content="green", tool_call_id=one.id, function="look") for one in answer.message.tool_calls]
        assert ask(model, [ChatMessageUser(content=STORY), answer.message, *results], tools=[LOOK], tool_choice="none").completion


if __name__ == "__main__":
    run_checks(globals())
