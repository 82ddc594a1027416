"""The demo model with prompts that end inside a message: what it writes next is reasoning or a call, though it was never taught either."""
import json

from nibble_program import ROOT

DEMO = ROOT / "models/demo"


def write_opened_demo(folder, opened):
    """`opened` stands behind <|start|>assistant in the template's text. The model's reasoning ends with the token that it writes
    behind a text: <|endoftext|> and <|end|> have each other's names. What it writes behind an answer ends the answer."""
    for file in DEMO.iterdir():
        (folder / file.name).symlink_to(file)
    template = (DEMO / "chat_template.jinja").read_text()
    assert "'<|start|>assistant' -}}" in template
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    other = {"<|end|>": "<|endoftext|>", "<|endoftext|>": "<|end|>"}
    for token in tokenizer["added_tokens"]:
        token["content"] = other.get(token["content"], token["content"])
    ends = [ids[name] for name in ("<|return|>", "<|end|>", "<|call|>")]
    for name, text in (("chat_template.jinja", template.replace("'<|start|>assistant' -}}", f"'<|start|>assistant{opened}' -}}}}")),
                       ("tokenizer.json", json.dumps(tokenizer)), ("generation_config.json", json.dumps({"eos_token_id": ends, "temperature": 0.7}))):
        (folder / name).unlink()
        (folder / name).write_text(text)
