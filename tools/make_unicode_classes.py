#!/usr/bin/env python3
"""Writes src/text/unicode_class_ranges.inc, the character class of every code point, or with --han
src/text/unicode_han_ranges.inc, the code points of the script Han.

The classes are asked of PyPI tiktoken (the `regex` crate's tables), because the ids of a text are right only
if they are the ids the model was trained with; PyPI tokenizers has the same tables, which
tests/tokenizer_differential.py checks code point by code point. Run it by hand when those move to a newer
Unicode, and look at the difference:

    tools/make_unicode_classes.py > src/text/unicode_class_ranges.inc
    tools/make_unicode_classes.py --han > src/text/unicode_han_ranges.inc
"""
import sys

import tiktoken

# The bits of nibble::CharClass, in the order of unicode_class.h.
CLASSES = [
    ("kUpper", r"[\p{Lu}\p{Lt}]"),
    ("kLower", r"\p{Ll}"),
    ("kOtherLetter", r"[\p{Lm}\p{Lo}]"),
    ("kMark", r"\p{M}"),
    ("kNumber", r"\p{N}"),
    ("kSpace", r"\s"),
    ("kPunctuation", r"\p{P}"),
    ("kSymbol", r"\p{S}"),
]
SURROGATES = range(0xD800, 0xE000)
LIMIT = 0x110000


def members(pattern):
    """The code points that match `pattern`: an encoding drops the text between its pattern's matches."""
    bytes_alone = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=bytes_alone, special_tokens={})
    found = set()
    step = 4096
    for first in range(0, LIMIT, step):
        text = "".join(chr(c) for c in range(first, first + step) if c not in SURROGATES)
        found.update(map(ord, bytes(encoding.encode_ordinary(text)).decode()))
    return found


def write(items):
    out = [f"// Made by tools/make_unicode_classes.py with tiktoken {tiktoken.__version__}."]
    line = ""
    for item in items:
        if len(line) + len(item) > 108:
            out.append(line)
            line = ""
        line += item
    out.append(line)
    sys.stdout.write("\n".join(out) + "\n")


def write_han():
    """{first, last} of each run."""
    han = members(r"\p{Han}")
    starts = sorted(c for c in han if c - 1 not in han)
    ends = sorted(c for c in han if c + 1 not in han)
    write(f"{{0x{first:X},0x{last:X}}}," for first, last in zip(starts, ends))


def main():
    if sys.argv[1:] == ["--han"]:
        write_han()
        return
    classes = bytearray(LIMIT)
    for bit, (_, pattern) in enumerate(CLASSES):
        for code_point in members(pattern):
            classes[code_point] |= 1 << bit
    starts = [c for c in range(LIMIT) if c == 0 or classes[c] != classes[c - 1]]
    write(f"0x{start << 8 | classes[start]:X}," for start in starts)


if __name__ == "__main__":
    main()
