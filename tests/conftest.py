"""Puts this folder on the import path, so that tests find nibble_program."""
