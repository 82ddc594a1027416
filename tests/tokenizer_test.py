"""nibble tokenize as its user meets it, and its ids against those of PyPI tokenizers and tiktoken."""
import json

import pytest

import tokenizer_differential as differential
import vocabularies
from nibble_program import PARITY, run

TOKENIZER = PARITY / "example/tokenizer.json"


def tokenize(*arguments, **more):
    code, out, err = run("tokenize", *arguments, **more)
    assert code == 0, err
    return out


def test_ids_and_pieces_of_a_text():
    found = json.loads(tokenize(TOKENIZER, "--text", "The fox.", "--json"))
    assert list(found) == ["ids", "pieces"]
    assert "".join(found["pieces"]) == "The fox."
    assert tokenize(TOKENIZER, "--text", "The fox.").split() == [str(i) for i in found["ids"]]


def test_a_text_comes_from_a_file_or_standard_input_with_every_byte_of_it(tmp_path):
    text = "one\r\ntwo\n\n"
    (tmp_path / "text").write_bytes(text.encode())
    ids = tokenize(TOKENIZER, "--text", text)
    assert tokenize(TOKENIZER, "--file", tmp_path / "text") == ids
    assert tokenize(TOKENIZER, stdin=text) == ids
    assert tokenize(TOKENIZER, "--decode", ",".join(ids.split())) == text + "\n"


def test_control_tokens_count_only_with_special():
    end = 409
    assert str(end) not in tokenize(TOKENIZER, "--text", "<|end|>").split()
    assert tokenize(TOKENIZER, "--text", "<|end|>", "--special").split() == [str(end)]
    assert tokenize(TOKENIZER, "--decode", str(end)) == "<|end|>\n"


def test_json_lines_are_one_text_each():
    out = tokenize(TOKENIZER, "--json-lines", stdin='"The fox."\n""\n"a\\nb"\n')
    assert [list(json.loads(line)) for line in out.splitlines()] == [["ids"]] * 3
    assert json.loads(out.splitlines()[1]) == {"ids": []}


@pytest.mark.parametrize("arguments, code, error", [
    (["--decode", "1,x"], 2, 'error: --decode: "x" is no token id; give ids from 0 to 416 such as 1,2,3'),
    (["--decode", "417"], 2, 'error: --decode: "417" is no token id; give ids from 0 to 416 such as 1,2,3'),
    (["--text", "a", "--decode", "1"], 2, "error: --text, --file and --decode exclude each other; give one of them or none"),
    (["--file", "/nowhere"], 2,
     'error: cannot open "/nowhere": No such file or directory; give a file that can be read, or - for standard input'),
    (["--json-lines", "--text", "a"], 2,
     "error: --json-lines reads texts from --file or standard input; leave out --text and --decode"),
])
def test_what_cannot_be_done_is_refused_in_one_line(arguments, code, error):
    assert run("tokenize", TOKENIZER, *arguments) == (code, "", error + "\n")


def test_a_broken_tokenizer_is_the_models_fault(tmp_path):
    broken = tmp_path / "tokenizer.json"
    broken.write_text(TOKENIZER.read_text().replace('"type": "BPE"', '"type": "Unigram"'))
    assert run("tokenize", broken, "--text", "a") == (
        3, "", f'error: "{broken}": model.type is "Unigram"; BPE is supported\n')


def compare_all(comparisons, strings, seed):
    for name, compare, spellings in comparisons:
        found = compare(differential.make_texts(strings, seed, spellings))
        assert not found, (name, ascii(found[:5]))


def test_ids_are_those_of_other_implementations(tmp_path):
    compare_all(differential.comparisons(tmp_path), 8000, 1)


@pytest.mark.long
@vocabularies.needs(*vocabularies.ALL)
def test_ids_of_published_vocabularies_are_those_of_other_implementations(tmp_path):
    compare_all(differential.published_comparisons(tmp_path, patterns=()), 4000, 4)


@vocabularies.needs(vocabularies.O200K)
def test_ids_of_o200k_are_those_that_two_other_encoders_agree_on():
    cases = json.loads((differential.DATA / "o200k_base_cases.json").read_text())
    found = differential.nibble_ids(vocabularies.O200K, [case["text"] for case in cases], "--encoding", "o200k_base")
    assert found == [case["ids"] for case in cases]
    for case in cases[1::4]:
        ids = ",".join(map(str, case["ids"]))
        assert tokenize(vocabularies.O200K, "--encoding", "o200k_base", "--decode", ids) == case["text"] + "\n"


@pytest.mark.extended
def test_ids_are_those_of_other_implementations_on_a_million_texts(tmp_path):
    compare_all(differential.comparisons(tmp_path), 1000000, 2)


@pytest.mark.extended
@vocabularies.needs(*vocabularies.ALL)
def test_ids_of_published_vocabularies_are_those_of_other_implementations_on_a_million_texts(tmp_path):
    compare_all(differential.published_comparisons(tmp_path), 1000000, 3)
