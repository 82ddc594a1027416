"""nibble's chat templates against jinja2 on the same inputs. pytest, with jinja2 from tools/requirements.txt.

NIBBLE_BUILD names the build folder (default build/release). NIBBLE_CHAT_TEMPLATES names a folder of further
templates (*.jinja), such as the ones that models ship; without it those tests are skipped."""
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

import chat_template_reference as reference
import chat_template_snippets as snippets

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(os.environ.get("NIBBLE_BUILD", ROOT / "build/release")) / "tests/chat_template_render"
OWN_TEMPLATES = sorted((ROOT / "tests/data/chat_templates").glob("*.jinja"))
MORE = os.environ.get("NIBBLE_CHAT_TEMPLATES")
MORE_TEMPLATES = sorted(Path(MORE).glob("*.jinja")) if MORE else []


def render_all(cases):
    """What nibble makes of each (template, variables)."""
    lines = [json.dumps({"template": template, "variables": variables, "model_variables": reference.MODEL_VARIABLES})
             for template, variables in cases]
    done = subprocess.run([PROGRAM], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert done.returncode == 0 and len(answers) == len(cases), done.stderr
    return answers


def compare(cases):
    rendered = 0
    for (template, variables), got in zip(cases, render_all(cases)):
        want, error = reference.render(template, {**variables, **reference.MODEL_VARIABLES})
        if error and "of type generator is not JSON serializable" in error:
            continue  # nibble's map and select give lists
        context = f"{template[:2000]}\n{json.dumps(variables, ensure_ascii=False)[:1000]}\n{error}\n{got.get('error')}"
        assert (want is None) == ("error" in got), context
        assert want is None or want == got["text"], context
        rendered += want is not None
    return rendered


def test_snippets():
    assert compare(snippets.SNIPPETS) > 100


def over_conversations(template):
    return [(template, {"messages": messages, "tools": tools, **variables})
            for as_text in (False, True) for messages in reference.conversations(as_text)
            for tools in reference.TOOL_SETS for variables in reference.VARIABLES]


@pytest.mark.parametrize("path", OWN_TEMPLATES, ids=lambda path: path.stem)
def test_templates_of_this_repository(path):
    assert compare(over_conversations(path.read_text())) > 100


@pytest.mark.skipif(not MORE_TEMPLATES, reason="NIBBLE_CHAT_TEMPLATES names no folder of templates")
@pytest.mark.parametrize("path", MORE_TEMPLATES, ids=lambda path: path.stem)
def test_templates_that_models_ship(path):
    compare(over_conversations(path.read_text()))


def by_transformers(template, variables):
    """(text, None) or (None, what went wrong), by transformers itself at the reference's time."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")

    class Now(reference.datetime.datetime):
        @classmethod
        def now(cls):
            return reference.NOW

    utils.datetime = Now
    variables = dict(variables)
    try:
        return utils.render_jinja_template(conversations=[variables.pop("messages")], chat_template=template, **variables)[0][0], None
    except Exception as error:  # as a template may fail in any way
        return None, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("path", OWN_TEMPLATES + MORE_TEMPLATES, ids=lambda path: path.stem)
def test_the_reference_renders_as_transformers_does(path):
    """What nibble is held to is what models' authors render with."""
    rendered = 0
    for template, variables in over_conversations(path.read_text()):
        variables = variables | reference.MODEL_VARIABLES
        want, error = by_transformers(template, variables)
        # It tells reasoning under two names, as nibble's own rendering of a conversation does.
        messages = pytest.importorskip("transformers.utils.chat_template_utils")._alias_reasoning_fields(variables["messages"])
        got, failure = reference.render(template, variables | {"messages": messages})
        assert got == want, (variables, error, failure)
        rendered += want is not None
    assert rendered > 100


class Grammar:
    """Random templates, mostly without type errors, over the variables of the snippets."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = []

    def one(self, *choices):
        return self.random.choice(choices)

    def text(self, depth):
        if depth <= 0:
            return self.one("u", "uni", "pad", "'lit'", "' a b '", "d.k", "lines", "empty", "people[0].name", *self.names)
        a, b = self.text(depth - 1), self.text(depth - 1)
        n = self.random.randint(-4, 4)
        return self.one(
            f"({a} ~ {b})", f"({a} + {b})", f"{a}[{n}:]" if a.isidentifier() else f"({a})[:{n}]", f"({a})|upper", f"({a})|trim",
            f"({a})|replace('t', {b})", f"({a}).split('t')|join({b})", f"({a} if {self.condition(depth - 1)} else {b})",
            f"({self.number(depth - 1)})|string", f"({a})[::-1]", f"({self.items(depth - 1)})|join('-')", f"({a})|title",
            f"({self.value(depth - 1)})|tojson", f"({a}).strip('ux ')", f"({a})|indent({abs(n)}, {self.one('true', 'false')})",
            f"({a})|capitalize", f"({a}).rstrip()", f"'%s|%s' % ({a}, {b})", f"({a}).splitlines()|join('/')",
            f"({a})|default({b}, true)", f"({self.items(depth - 1)})|string", f"({a})[{n}]", f"(missing|default({a}))")

    def number(self, depth):
        if depth <= 0:
            return self.one("n", "2", "0", "x", "1.5", "-3", "people|length", "u|length")
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.one(f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} // {b})", f"({a} % {b})", f"({a} / {b})",
                        f"({self.text(depth - 1)})|length", f"({a})|int", f"-({a})", f"({self.items(depth - 1)})|length")

    def condition(self, depth):
        if depth <= 0:
            return self.one("yes", "nothing", "n > 2", "u is string", "missing is defined", "'t' in u", "l", "empty")
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        return self.one(f"({a} and {b})", f"({a} or {b})", f"not ({a})", f"({self.text(depth - 1)}) == ({self.text(depth - 1)})",
                        f"({self.number(depth - 1)}) < ({self.number(depth - 1)})", f"({self.text(depth - 1)}) in ({self.text(depth - 1)})",
                        f"({self.value(depth - 1)}) is {self.one('string', 'mapping', 'none', 'number', 'iterable', 'sequence', 'defined', 'boolean')}")

    def items(self, depth):
        if depth <= 0:
            return self.one("l", "[1, 2]", "people|map(attribute='age')|list", "range(3)|list", "d|list", "[]")
        a = self.items(depth - 1)
        n = self.random.randint(-3, 3)
        return self.one(f"({a})[{n}:]", f"({a})[::-1]", f"({a}) + ({self.items(depth - 1)})", f"[{self.value(depth - 1)}]",
                        f"({a})|map('string')|list", f"({a})|select('string')|list", f"({self.text(depth - 1)})|list",
                        f"({a})|map('string')|sort", f"({a})|unique|list", f"({a})|reverse|list", f"({a})[::{n or 1}]")

    def value(self, depth):
        return self.one(self.text, self.number, self.condition, self.items)(depth)

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 3)))

    def tag(self, inside):
        return "{%" + self.one("", "", "-", "+") + " " + inside + " " + self.one("", "", "-") + "%}"

    def statement(self, depth):
        data = self.one("x", " ", "\n", "  \n  ", "text\n", "\t", "<|a|>", "")
        if depth <= 0:
            return data + "{{" + self.one("", "-") + " " + self.value(2) + " " + self.one("", "-") + "}}" + data
        name = f"v{len(self.names)}"
        choice = self.random.randint(0, 5)
        if choice == 0:
            return data + self.tag(f"if {self.condition(1)}") + self.body(depth - 1) + self.tag("else") + self.body(depth - 1) + self.tag("endif")
        if choice == 1:
            test = self.one("", f" if {self.condition(1)}")
            loop = self.one("", "{{ loop.index }}", "{{ loop.last }}", "{% if loop.index > 2 %}{% break %}{% endif %}", "{{ loop.nextitem }}")
            return data + self.tag(f"for i in {self.items(1)}{test}") + loop + "{{ i }}" + self.body(depth - 1) + self.tag("endfor")
        if choice == 2:
            made = data + self.tag(f"set {name} = {self.text(2)}")
            self.names.append(name)
            return made
        if choice == 3:
            body = self.body(depth - 1)
            made = data + self.tag(f"set {name}") + body + self.tag("endset") + "{{ " + name + " }}"
            self.names.append(name)
            return made
        if choice == 4:
            return data + self.tag(f"macro m(a, b={self.text(1)})") + "{{ a ~ b }}" + self.body(depth - 1) + self.tag("endmacro") + "{{ m(" + self.value(1) + ") }}"
        return data + self.one("{# note #}", "{#- note -#}", "{% raw %}{{ u }}{% endraw %}", "{% filter upper %}a{{ u }}{% endfilter %}")


def compare_random(seeds):
    assert compare([(Grammar(seed).body(3), snippets.DATA) for seed in seeds]) > len(seeds) // 3


def test_random_templates():
    compare_random(range(300))


@pytest.mark.extended
def test_many_random_templates():
    compare_random(range(300, 5000))
