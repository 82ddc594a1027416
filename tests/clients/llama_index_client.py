"""llama-index: texts, chats, streams, structured output and forced calls."""
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from checks import STORY, run_checks, url


class Animal(BaseModel, extra="forbid"):
    """An animal."""
    kind: Literal["frog", "bear", "cat"]
    green: bool


def model(**more):
    return OpenAILike(model="demo", api_base=url() + "/v1", api_key="none", is_function_calling_model=True, context_window=2048, max_retries=0,
                      **{"max_tokens": 1200, "is_chat_model": True} | more)


def check_texts_whole_and_streamed():
    whole = model(max_tokens=12).chat([ChatMessage(role="user", content=STORY)]).message.content
    assert whole == "".join(part.delta or "" for part in model(max_tokens=12).stream_chat([ChatMessage(role="user", content=STORY)]))
    assert model(max_tokens=12, is_chat_model=False).complete("Once upon a time").text


def check_a_structured_answer():
    assert isinstance(model(should_use_structured_outputs=True).as_structured_llm(Animal).chat([ChatMessage(role="user", content=STORY)]).raw, Animal)


def check_forced_calls():
    def look(animal: Literal["frog", "bear"], closely: bool) -> str:
        """Looks at an animal."""
        return f"{animal} {closely}"

    tool = FunctionTool.from_defaults(look)
    answer = model().chat_with_tools([tool], user_msg=STORY, tool_required=True)
    call = model().get_tool_calls_from_response(answer)[0]
    assert call.tool_name == "look" and tool(**call.tool_kwargs).content


def check_a_program():
    program = FunctionCallingProgram.from_defaults(output_cls=Animal, prompt_template_str=STORY, llm=model(), tool_required=True, tool_choice="required")
    assert isinstance(program(), Animal)


if __name__ == "__main__":
    run_checks(globals())
