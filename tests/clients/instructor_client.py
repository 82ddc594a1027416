"""instructor: models by a forced call and by schema, whole and in parts."""
from typing import Literal

import instructor
import openai
from pydantic import BaseModel

from checks import STORY, run_checks, url

CLIENT = openai.OpenAI(base_url=url() + "/v1", api_key="none", max_retries=0)
ASK = {"model": "demo", "messages": [{"role": "user", "content": STORY}], "max_tokens": 1200, "max_retries": 0}


class Animal(BaseModel, extra="forbid"):
    """An animal."""
    kind: Literal["frog", "bear", "cat"]
    green: bool


def made_by(mode):
    return instructor.from_openai(CLIENT, mode=mode).chat.completions.create(response_model=Animal, **ASK)


def check_by_schema():
    assert isinstance(made_by(instructor.Mode.JSON_SCHEMA), Animal)


def check_by_a_call():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
        assert isinstance(made_by(mode), Animal), mode


def check_in_parts():
    parts = list(instructor.from_openai(CLIENT, mode=instructor.Mode.TOOLS).chat.completions.create_partial(response_model=Animal, **ASK))
    assert parts and parts[-1].kind


def check_by_responses():
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.RESPONSES_TOOLS)
    assert isinstance(client.responses.create(model="demo", input=STORY, max_output_tokens=1200, response_model=Animal, max_retries=0), Animal)


if __name__ == "__main__":
    run_checks(globals())
