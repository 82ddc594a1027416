#!/usr/bin/env python3
"""Man pages of nibble and its commands, made of what the program's --help prints.

    tools/make_man.py [--program build/release/nibble] [--date @SECONDS] FOLDER

writes FOLDER/nibble.1 and FOLDER/nibble-COMMAND.1. A page repeats nothing that the help does not say, so it cannot
differ from the program. Standard library only.
"""
import argparse
import re
import subprocess
import time
from pathlib import Path

# A row of two columns: its left one begins after two spaces, its right one after at least two more.
ROW = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")


def roff(text):
    """A text as roff prints it literally: no escape, no request, hyphens that can be searched for and copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha").replace("`", "\\(ga")
    return re.sub(r"^([.'])", r"\\&\1", text)


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def rows(lines):
    """(left, right) of a table; a row that is wrapped goes on in lines that are indented deeper than two."""
    table = []
    for line in lines:
        row = ROW.match(line)
        if row and not line.startswith("   "):
            table.append([row[1], row[2] or ""])
        elif table:
            table[-1][1] = f"{table[-1][1]} {line.strip()}".strip()
    return table


def option_name(left):
    """--name VALUE: the name in bold, the value in italics."""
    name, _, value = left.partition(" ")
    return bold(name) + (f" \\fI{roff(value)}\\fR" if value else "")


def listed(table, left):
    text = []
    for name, about in table:
        text += [".TP", left(name), roff(about) or "\\&"]
    return text


def header(name, section_date, version, summary):
    title = name.upper().replace("-", "\\-")
    return [f".TH {title} 1 {section_date} \"nibble {version}\" \"User Commands\"", ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]


def command_page(name, text, day, version):
    """One command's page. Its help is: summary, usage, the arguments' table, groups of options, limits, where options
    are read from too, an example."""
    summary, usage, *rest = text.splitlines()
    page = header(f"nibble-{name}", day, version, summary)
    words = usage.removeprefix("usage: ").split(", ")
    page += [".SH SYNOPSIS", bold(f"nibble {name}") + roff(words[0].removeprefix(f"nibble {name}"))]
    sections, notes, example = [("ARGUMENTS", [])], [], ""
    for line in rest:
        heading = re.match(r"^([A-Z][A-Za-z ]*):$", line)
        if line.startswith("example: "):
            example = line.removeprefix("example: ")
        elif heading:
            sections.append((heading[1].upper(), []))
        elif line.startswith("Limits:  "):
            sections.append(("LIMITS", [line.removeprefix("Limits:  ")]))
        elif line.startswith(" "):
            sections[-1][1].append(line)
        else:
            notes.append(line)
    for title, lines in sections:
        if not lines:
            continue
        page.append(f".SH {roff(title)}")
        if title == "LIMITS":
            # "--name [default], ..." in short.
            limits = re.findall(r"(--[a-z-]+) \[([^]]*)\]", " ".join(map(str.strip, lines)))
            page += listed([(limit, f"[{default}]") for limit, default in limits], option_name)
        else:
            page += listed(rows(lines), option_name if title != "ARGUMENTS" else lambda left: f"\\fI{roff(left)}\\fR")
    notes += [part for part in words[1:]]
    if notes:
        page.append(".SH NOTES")
        for i, note in enumerate(notes):
            page += [".PP"] * (i > 0) + [roff(note)]
    page += [".SH EXAMPLE", ".nf", bold(example), ".fi", ".SH SEE ALSO", "\\fBnibble\\fR(1)"]
    return page


def program_page(text, commands, day, version):
    summary, usage, *rest = text.splitlines()
    page = header("nibble", day, version, summary.removeprefix("nibble ").rstrip("."))
    page += [".SH SYNOPSIS", bold("nibble") + roff(usage.removeprefix("usage: nibble"))]
    page += [".SH COMMANDS", *listed([(name, about) for name, about in commands], bold)]
    notes = " ".join(line for line in rest if not line.startswith(("  ", "example: ")))
    page += [".SH DESCRIPTION", roff(notes)]
    page += [".SH FILES", ".TP", "\\fI/etc/nibble/nibble.conf\\fR",
             "What nibble.service serves: lines of name = value, in the names of \\fBnibble\\-serve\\fR(1)'s options "
             "without their dashes.",
             ".TP", "\\fI/var/cache/nibble\\fR", "That service's cache of models."]
    page += [".SH SEE ALSO", ", ".join(f"\\fBnibble\\-{roff(name)}\\fR(1)" for name, _ in commands)]
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/nibble", type=Path)
    parser.add_argument("--date", default=f"@{int(time.time())}", help="of the pages, as @SECONDS")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    day = time.strftime("%Y-%m-%d", time.gmtime(int(args.date.removeprefix("@"))))

    def said(*arguments):
        return subprocess.run([args.program.resolve(), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    version = said("--version").split()[1]
    overview = said("--help")
    commands = rows(line for line in overview.splitlines() if line.startswith("  "))
    pages = {"nibble": program_page(overview, commands, day, version)}
    for name, _ in commands:
        pages[f"nibble-{name}"] = command_page(name, said(name, "--help"), day, version)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        (args.folder / f"{name}.1").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
