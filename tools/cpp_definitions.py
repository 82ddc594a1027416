"""What a C++ file defines that another file may define again without the linker's protest.

A scanner, not a parser: it knows braces, namespaces and how definitions begin. What it does not understand it passes by.
"""
import re

PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ANGLES = r"<(?:[^<>]|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)*>"
NAME = rf"(?:\w+\s*(?:{ANGLES})?\s*::\s*)*~?\w+\s*(?:{ANGLES})?"

DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(?:[^\n\\]|\\.)*", re.M | re.S)
BRANCH, OTHER_BRANCH, BRANCHES_END = "\1\2\3"
OUTSIDE = re.compile("[{};\1\2\3]")  # of all braces but namespaces'
INSIDE = re.compile("[{}\1\2\3]")

NAMESPACE = re.compile(r"\bnamespace\s*((?:\w+(?:\s*::\s*(?:inline\s+)?)?)*)\s*$")
TEMPLATE = re.compile(rf"\btemplate\s*({ANGLES})")
ATTRIBUTE = re.compile(
    rf"\[\[.*?\]\]|\b(?:alignas|__align__|__attribute__|__launch_bounds__|decltype|explicit)\s*{PARENTHESES}", re.S)
TYPE = re.compile(
    rf"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+({NAME})\s*(?:\bfinal\s*)?(?::(?!:).*)?$", re.S)
OPERATOR = re.compile(r"\boperator\s*(\(\s*\)|[^\s\w(]+)")
LETTERS = 0x100  # where letters begin that stand for an operator's signs, so that its name is a word
LAST_NAME = re.compile(rf"({NAME})\s*$")
INLINE = re.compile(r"\b(?:inline|constexpr|consteval|__forceinline__|\w+_INLINE)\b")
SPECIFIER = re.compile(rf"{INLINE.pattern}|\b(?:__host__|__device__|__global__|__noinline__|NIBBLE_\w+)\b")
REQUIREMENT = re.compile(rf"\brequires\s*(?:{PARENTHESES})?\s*$")
NO_VARIABLE = re.compile(r"\b(?:static|extern|using|typedef|friend|concept|struct|class|union|enum|operator)\b")
NAMED_PARAMETER = re.compile(r"(.*[\s&*>])(\w+)((?:\[[^\]]*\])*)$", re.S)
TYPE_WORDS = {"int", "char", "long", "short", "double", "float", "bool", "unsigned", "signed", "auto"}
NO_TYPE = {"const", "volatile", "struct", "class", "enum", "typename"}


def definitions(code):
    """Types, inline functions and variables, and templates of these as (entity, offset), but for those in anonymous namespaces.
    An entity is a tuple: kind, qualified name, and what else tells it from others of the name. Members count where they are
    defined outside of their class. code: without comments and literals."""
    code = DIRECTIVE.sub(branch_mark, code)
    found, branches = [], []
    scopes = []  # a namespace's name, None for an anonymous one, False for other braces
    head, continued = 0, False  # where a declaration begins, and whether it goes on behind the braces in it
    at = 0
    while token := (INSIDE if scopes and scopes[-1] is False else OUTSIDE).search(code, at):
        at, mark = token.end(), token.group()
        outside = not scopes or scopes[-1] is not False
        if mark == "{" and outside:
            text = code[head:token.start()]
            if match := NAMESPACE.search(text):
                scopes.append(re.sub(r"\s|\binline\b", "", match.group(1)) or None)
                head = at
            elif declaration(text).split() == ["extern"]:  # "C"
                scopes.append("")
                head = at
            else:
                entities, continued = before_brace(text)
                found += named(entities, scopes, text, head)
                scopes.append(False)
        elif mark == "{":
            scopes.append(False)
        elif mark == "}" and scopes:
            scopes.pop()
            if not continued and (not scopes or scopes[-1] is not False):
                head = at
        elif mark == ";":
            found += named(variables(code[head:token.start()]), scopes, code[head:token.start()], head)
            head, continued = at, False
        elif mark == BRANCH:
            branches.append(list(scopes))
        elif mark == OTHER_BRANCH and branches:
            scopes = list(branches[-1])
        elif mark == BRANCHES_END and branches:
            branches.pop()
    return found


def branch_mark(directive):
    """Branches of #if are alternatives: each begins in the scopes where the first one does. Other directives are blank."""
    word = directive.group(1)
    mark = BRANCH if word.startswith("if") else OTHER_BRANCH if word.startswith("el") else BRANCHES_END if word == "endif" else " "
    return mark + re.sub(r"[^\n]", " ", directive.group()[1:])


def named(entities, scopes, text, offset):
    """The entities with their namespaces and their place."""
    if None in scopes:
        return
    begin = re.search(r"\btemplate\b|[^\s\1\2\3]", text)
    template = re.search(r"\btemplate\b", text)
    offset += (template or begin).start() if begin else 0
    for kind, name, more in entities:
        yield (kind, "::".join([scope for scope in scopes if scope] + [name]), more), offset


def before_brace(text):
    """The entities that the text before a brace defines, and whether the declaration goes on behind the braces."""
    text = declaration(text)
    templates = TEMPLATE.findall(text)
    plain = ATTRIBUTE.sub(" ", TEMPLATE.sub(" ", text))
    if match := TYPE.search(plain):
        name = packed(match.group(1))
        return [("type", name, packed(text) if "<" in name and constrained(text) else "")], False
    plain = OPERATOR.sub(lambda found: "operator" + "".join(chr(ord(c) + LETTERS) for c in packed(found.group(1))), plain)
    begin = opening(plain)
    declared = plain if begin is None else plain[:begin]
    # Braces of a default argument, a requirement, a value.
    if (plain.count("(") > plain.count(")") or "=" in declared or REQUIREMENT.search(plain)
            or (begin is None and plain.strip() and not plain.lstrip().startswith(","))):
        return [], True
    if begin is None or re.search(r"\bstatic\b", declared):
        return [], False
    if not INLINE.search(declared) and all(packed(each) == "<>" for each in templates):
        return [], False
    name, end = LAST_NAME.search(declared), closing(plain, begin)
    if name is None or end is None:
        return [], False
    types = ",".join(parameter_type(each) for each in split_at_commas(plain[begin + 1:end]))
    more = f"({types})" + ("const" if re.match(r"\s*const\b", plain[end + 1:]) else "")
    # Templates with one list are two where their results or what they demand differ.
    if templates:
        more += packed(text if constrained(text) else "".join(templates) + SPECIFIER.sub(" ", declared[:name.start()]))
    signs = re.sub(r"[\u0100-\u017f]", lambda letter: chr(ord(letter.group()) - LETTERS), name.group(1))
    return [("function", packed(signs), more)], False


def variables(text):
    """The inline variables, and templates of variables, of a declaration that ends in a semicolon."""
    if "inline" not in text and "template" not in text:
        return
    text = declaration(text)
    plain = ATTRIBUTE.sub(" ", TEMPLATE.sub(" ", text))
    templates = [each for each in TEMPLATE.findall(text) if packed(each) != "<>"]
    if not templates and not re.search(r"\binline\b", plain):
        return
    declarators = [re.split(r"[={\[]", each)[0] for each in split_at_commas(plain)]
    if "(" in declarators[0] or NO_VARIABLE.search(declarators[0]):
        return
    for declarator in declarators:
        if match := LAST_NAME.search(declarator):
            yield "variable", packed(match.group(1)), ""


def declaration(text):
    """The text without marks of branches, and without uses of macros before a template."""
    text = text.translate({1: " ", 2: " ", 3: " "})
    return text[max(0, text.find("template")):] if TEMPLATE.search(text) else text


def constrained(text):
    return "requires" in text or "enable_if" in text


def packed(text):
    """The text without spaces, but for those between words."""
    return re.sub(r"(?<!\w) | (?!\w)", "", " ".join(text.split()))


def opening(text):
    """Where the first parenthesis opens that is not inside angles."""
    depth = 0
    for match in re.finditer(r"[<>(]", text):
        depth += {"<": 1, ">": -1, "(": 0}[match.group()]
        if match.group() == "(" and depth <= 0:
            return match.start()
    return None


def closing(text, begin):
    """Where the parenthesis closes that opens at `begin`."""
    depth = 0
    for match in re.finditer(r"[()]", text[begin:]):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return begin + match.start()
    return None


def split_at_commas(text):
    """At those that are in no parentheses, angles or braces."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(r"[<>(){}\[\],]", text):
        if match.group() != ",":
            depth += 1 if match.group() in "<({[" else -1
        elif depth == 0:
            parts.append(text[begin:match.start()])
            begin = match.end()
    return parts + [text[begin:]] if text.strip() else []


def parameter_type(parameter):
    """A parameter without its name and its default."""
    declared = parameter.split("=")[0].strip()
    match = NAMED_PARAMETER.match(declared)
    if match and match.group(2) not in TYPE_WORDS and set(re.findall(r"\w+", match.group(1))) - NO_TYPE:
        declared = match.group(1) + match.group(3)
    return packed(declared)
