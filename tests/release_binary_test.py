"""The program starts on any machine with a recent enough glibc: it needs no other shared library."""
import re
import subprocess

from nibble_program import BINARY


def readelf(option):
    done = subprocess.run(["readelf", "--wide", option, BINARY], capture_output=True, text=True, check=True)
    return done.stdout


def test_it_needs_glibc_alone():
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic")))
    assert needed and needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}, needed


def test_it_names_no_folder_of_the_machine_that_built_it():
    assert not re.search(r"\((RPATH|RUNPATH)\)", readelf("--dynamic"))
