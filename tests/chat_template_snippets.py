"""Small templates, one feature each: (template, variables). Goldens of C++ tests and the differential test use them."""

DATA = {"u": "user text", "empty": "", "n": 3, "x": 2.5, "yes": True, "nothing": None, "l": ["b", "A", "c"],
        "d": {"k": "v", "items": [1, 2], "z": None}, "people": [
            {"name": "Ann", "age": 31, "tags": ["x"]}, {"name": "bob", "age": 7}, {"name": "Cy", "age": 31, "tags": []}],
        "uni": "Straße Łódź 漢字 🌧", "lines": "one\ntwo\r\n\nthree\n", "pad": " \t text \n"}

EXPRESSIONS = """
u ~ n ~ x ~ yes ~ nothing ~ undefined_thing
[u, n, x, yes, nothing, [1, 'it''s'], (1,), {'a': 1, 2: 'b'}]
['it\\'s', "a \\"q\\"", "both ' and \\"", 'new\\nline', 'tab\\t', '\\x00\\x7f\\u00e9\\u200b\\U0001F327']
1 + 2 * 3 - 4 // 3 + 7 % 4 - -2
2 ** 3 ** 2
-7 // 2 ~ ' ' ~ (-7 % 3) ~ ' ' ~ (7 % -3) ~ ' ' ~ -7 / 2
1 / 3
1e16 ~ ' ' ~ 1e15 ~ ' ' ~ 0.0001 ~ ' ' ~ 0.00001 ~ ' ' ~ 1.0 ~ ' ' ~ 100.5 ~ ' ' ~ 1e-7 ~ ' ' ~ 123456789.125
7.5 // 2 ~ ' ' ~ 7.5 % 2 ~ ' ' ~ -7.5 // 2 ~ ' ' ~ 2.0 ** 0.5
'ab' * 3 ~ 2 * 'x' ~ [1] * 2
'a' 'b' "c"
n > 2 and x < 3 or nothing
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, 'a' < 'b', [1, 2] < [1, 3], (1,) == [1]
'k' in d, 'v' in d, 'ser' in u, 'b' in l, 'q' not in l, 1 in undefined_thing
not yes, not not u, not empty
u if yes else n
u if nothing
(u if nothing) is defined
d.k, d['k'], d['items'], d.missing, d['z'], d.get('k'), d.get('q'), d.get('q', 5)
d.items is defined, d.items()|list, d.keys()|list, d.values()|list
u[0], u[-1], u[100], u[1:4], u[::-1], u[-3:], u[:-3], u[::2], u[5:1], u[4:1:-1]
l[0], l[-1], l[9], l[1:], l[::-1], l[:1], l[5:], people[1:][0].name
uni[2], uni[-1], uni[4:8], uni|length, uni|upper, uni|reverse
range(3)|list, range(1, 4)|list, range(5, 0, -2)|list, range(0)|list
dict(a=1, b=u), dict({'x': 1}, y=2)
(1, 2), (), (1,), 1,
u|length, l|length, d|length, undefined_thing|length, l|count
pad|trim, pad.strip(), pad.lstrip(), pad.rstrip(), 'xxaxx'.strip('x'), 'xyaxy'|trim('xy')
u|upper, 'ÀÉ'|lower, 'hello wORLD-foo (bar)'|title, 'hELLO w'|capitalize, "they're bill's".title()
l|join, l|join(', '), [1, none, 2.5]|join('-'), people|join('/', attribute='name'), d|join('+')
undefined_thing|default('x'), nothing|default('x'), nothing|default('x', true), ''|default('y', boolean=true), undefined_thing|d
u|replace('e', 'E'), u.replace('s', ''), 'aaa'|replace('a', 'b', 2), 'ab'|replace('', '-'), 'aaaa'.replace('aa', 'b')
u.split(), u.split('e'), u.split('e', 1), ' a  b c '.split(), ' a  b c '.split(none, 1), 'a,b,c'.rsplit(',', 1), ''.split(), ''.split(',')
lines.splitlines(), lines|indent, lines|indent(2, true), lines|indent('> ', blank=true), lines|indent(width=1)
u.startswith('user'), u.endswith(('x', 'text')), u.startswith('x'), u.find('t'), u.find('zz'), 'banana'.count('an')
'%s and %s' % (u, n), '%d%%' % 5, '%5s|%-5s|%05d' % ('a', 'b', 42), '%.2f' % x, '%s' % [1], '%r' % 'a'
'%s-%s'|format(u, n), '{} {}'.format(u, n), '{1}{0}{{}}'.format(1, 2), '{a}'.format(a=u)
'12'|int, '12.7'|int, 'x'|int, 'x'|int(5), 3.9|int, true|int, ' 7 '|int, '1.5'|float, 'z'|float, 4|float, none|int
1|string, 1.5|string, none|string, yes|string, l|string
l|first, l|last, []|first, 'abc'|first, 'abc'|last
l|list, 'abc'|list, d|list, d|items|list, undefined_thing|list
l|sort, l|sort(reverse=true), l|sort(case_sensitive=true), people|sort(attribute='age')|map(attribute='name')|list
['b', 'a', 'B', 'b']|unique|list, people|unique(attribute='age')|map(attribute='name')|list
l|map('upper')|list, people|map(attribute='name')|join(','), people|map(attribute='tags', default='-')|list, people|map(attribute='tags.0')|list
people|selectattr('tags')|map(attribute='name')|list, people|selectattr('age', 'equalto', 31)|list|length, people|rejectattr('age', 'gt', 10)|map(attribute='name')|list
[1, 0, '', 'a', none]|select|list, [1, 0, '', 'a']|reject|list, [1, 2, 3, 4]|select('even')|list, ['a', 1]|select('string')|list
{'b': 1, 'A': 2, 'c': 0}|dictsort, {'b': 1, 'A': 2}|dictsort(by='value'), {'b': 1, 'A': 2}|dictsort(true)
[3, 1, 2]|max, [3, 1, 2]|min, -3|abs, (-3)|abs, [1, 2]|reverse|list
d|tojson, people|tojson, u|tojson, uni|tojson, uni|tojson(ensure_ascii=true), 1.0|tojson, 1e16|tojson, nothing|tojson, yes|tojson
d|tojson(indent=2)
people|tojson(indent=4, sort_keys=true)
[]|tojson(indent=1), {}|tojson(indent=1), [[]]|tojson(indent=1), [1]|tojson(indent=0)
d|tojson(separators=(',', ':')), {1: 2, none: 3, true: 4, 1.5: 5}|tojson, '</script>&\\'\\u2028\\x07\\x7f'|tojson
'<b>'|safe ~ '<i>', 5|safe ~ 1
u is defined, undefined_thing is undefined, nothing is none, u is string, d is mapping, l is iterable, l is sequence, n is number, x is float, n is integer, yes is boolean, yes is true, yes is false, n is true
d is iterable, d is sequence, u is sequence, n is iterable, undefined_thing is iterable, undefined_thing is sequence, nothing is iterable, yes is number, yes is integer
3 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(2), 'a' is in 'abc', 'a' is in ['b'], n is eq 3, n is ne 3, n is lt 5, n is ge(3), 'A' is upper, 'a' is lower
u is not string, nothing is not none, d.missing is not defined, n is sameas 3, range is callable, d.items is callable
namespace(a=1).a, namespace({'q': 2}).q
strftime_now('%Y-%m-%d'), strftime_now('%d %B %Y %H:%M:%S %a %j %%')
'a.b.c'.split('.')[-1], ('</think>' in 'x</think>y'), 'x</think>y'.split('</think>')[0].rstrip('\\n').split('<think>')[-1]
'abc'.isalpha(), '123'.isdigit(), ''.isdigit(), 'a1'.isalnum(), ' '.isspace(), 'AB'.isupper(), 'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), '-'.join(l), '-'.join(['a', u])
l.index('A'), l.count('z'), (1, 2, 1).count(1), d.copy()
undefined_thing == undefined_other, undefined_thing == none, undefined_thing != 1, none == none
1_000, 0, 007 if false else 7
[1, 2,], {'a': 1,}, (1, 2,)
'\\q \\101 \\N' if false else '\\q \\101'
u|upper|lower|replace('u', 'U')|trim|length * 2
-n|abs, -(n|abs), (u|length) - 1, u|length - 1
x|int + 1, (x + 0.5)|int, '5'|int + '6'|int
l + ['d'], (1,) + (2,), 'a' + 'b' ~ 1
"a\\
b"
loop is defined
raise_exception('no ' ~ n)
undefined_thing.attribute
undefined_thing['item']
undefined_thing()
undefined_thing + 'x'
'x' + undefined_thing
'x' + none
'x' + 1
1 + 'x'
u.missing()
l.append(1)
d.update({})
d.pop('k')
nothing.x
nothing.x.y
nothing[0]
nothing|length
5|length
undefined_thing|tojson
undefined_thing|int
1 < 'a'
1 in 'abc'
'a' in 5
none in 'abc'
1 / 0
5 % 0
5 // 0
u(1)
'a'|join(1, 2, 3)
range(1000000)
range('a')
[1, 'a']|sort
[1]|map('nothing')|list
''.split('')
{[]: 1}
for
u.
u |
1 +
(1
[1, 2
{'a' 1}
u is
u is nosuch
u|nosuch
'unterminated
\\x
007
1 if
a b
""".strip("\n").split("\n")

STATEMENTS = [
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in u %}{{ c }}.{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for i in l if i != 'A' %}{{ loop.index }}{{ i }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in [[1, 2]] %}{{ a + b }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for i in 5 %}{% endfor %}", "{% for i in nothing %}{% endfor %}", "{% for i in undefined_thing %}x{% else %}e{% endfor %}",
    "{% set a = 1 %}{% for i in l %}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{% set ns.b = 'q' %}{{ ns.b }}{{ ns.c is defined }}",
    "{% for i in l %}{% set seen = i %}{% endfor %}{{ seen is defined }}{% if yes %}{% set seen = 5 %}{% endif %}{{ seen }}",
    "{% for i in l %}{% if loop.first %}{% set s = i %}{% endif %}{{ s }}|{% endfor %}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}", "{% set d.k = 1 %}", "{% set nowhere.k = 1 %}",
    "{% set b %}  in {{ u }}\n{% endset %}[{{ b }}]{{ b|length }}{% set c | upper | trim %} {{ u }} {% endset %}[{{ c }}]",
    "{% macro m(a, b='B', c=a) %}{{ a }}-{{ b }}-{{ c }}{{ d2 is defined }}{% endmacro %}{{ m(1) }}|{{ m(1, 2) }}|{{ m(1, c=3) }}|{{ m(b=u, a=2) }}|{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{{ m() }}{% set later = 'L' %}{{ m() }}",
    "{% macro m() %}{% set u = 'inner' %}{{ u }}{% endmacro %}{{ m() }}{{ u }}",
    "{% macro m() %}{{ i }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{% for i in l %}{% macro m() %}<{{ i }}>{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(6) }}",
    "{% macro f(x, y=true) %}{{ x }}{% if y %}{{ f(x ~ 'a', false) }}{% endif %}{% endmacro %}{{ f('q')|upper }}{{ f('q')|length }}",
    "{% macro box(t) %}[{{ t }}: {{ caller() }}]{% endmacro %}{% call box('x') %}in {{ u }}{% endcall %}",
    "{% macro each(xs) %}{% for x in xs %}{{ caller(x) }};{% endfor %}{% endmacro %}{% call(v) each(l) %}<{{ v }}>{% endcall %}",
    "{% filter upper %}a {{ u }}{% endfilter %}{% filter replace('a', 'b')|trim %} aa {% endfilter %}",
    "{% with a = 1, b = u %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% generation %}a{{ u }}{% endgeneration %}",
    "{% for i in l %}{% with a = i %}{% if loop.index == 2 %}{% break %}{% endif %}{{ a }}{% endwith %}.{% endfor %}|{{ a is defined }}",
    "{% raw %}{{ u }} {% if %} {# x #}{% endraw %}|{%- raw -%}  a  {%- endraw -%}  b",
    "{% if n == 1 %}a{% elif n == 2 %}b{% elif n == 3 %}c{% else %}d{% endif %}{% if nothing %}x{% endif %}{% if undefined_thing %}y{% else %}z{% endif %}",
    "{% if u, %}tuple{% endif %}", "a{# comment {{ u }} #}b{#- trimmed -#}  c  {#- x -#}\n\nd",
    "  {% if yes %}\n    a\n  {% endif %}\n  b\n", "x {% if yes %} y {% endif %} z\n\n", "\n\n{% if yes %}\n\nq{% endif %}",
    "a\n  {%- if yes %}\n b\n {%- endif -%}\n  c", "a  {%+ if yes %}\n b\n  {%+ endif +%}\n  c", "  {{ u }}\n  {{- u -}}\n  {{+ n }} x\n",
    "{{ u }}\n", "{{ u }}\n\n", "\r\n{% if yes %}\r\nx\r{% endif %}\ry", "{%if yes%}a{%endif%}{{u}}", "{{ '{{ }} {% %}' }}{{ \"#}\" }}",
    "{{ {'a': {'b': 1}}['a'] }}{{ {'a': 1}}}", "line\n  {# c #}\nnext\n  {# c -#}\n  more", "\u00a0{%- if yes %}\u3000{{- u }}{% endif %}",
    "{% set x = 'a' %}{{ x }}{%- set y = 'b' -%} {{ y }}", "{%- for m in people -%}\n {{ m.name }}\n{%- if not loop.last %}, {% endif -%}\n{%- endfor -%}",
    "{{ u }", "{{ u", "{% if yes %}", "{% if yes %}{% else %}", "{% endif %}", "{% for %}", "{% for x %}", "{% for x in %}", "{% for x in l %}", "{% nosuch %}",
    "{% set %}", "{% set 1 = 2 %}", "{% set x %}", "{% set true = 1 %}", "{% macro %}", "{% macro m %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% break %}", "{% continue %}",
    "{# open", "{{ }}", "{% %}", "{{ u }} }}", "a }} b %} c", "{% call u %}{% endcall %}", "{% if yes %}{{ u|nosuch }}{% endif %}", "{% if nothing %}{{ u|nosuch }}{% endif %}ok",
    "{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ namespace(_x=1) }}", "{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [1] %}{{ ns.l }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% set f = 'x' %}{% macro g() %}{{ f }}{% endmacro %}{% set f = 'y' %}{{ g() }}{% for i in [1] %}{% set f = 'z' %}{{ g() }}{% endfor %}",
]

SNIPPETS = [("{{ " + expression + " }}", DATA) for expression in EXPRESSIONS] + [(text, DATA) for text in STATEMENTS]
