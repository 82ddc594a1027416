"""Puts this folder on the import path, so that tests find nibble_program, and chooses what is long (pytest.ini)."""
from collections import defaultdict

import pytest


def pytest_collection_modifyitems(items):
    """Of a parametrized test with the marker some(count) so many cases, spread over all, are not long."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("some"):
            cases[item.path, item.originalname].append(item)
    for several in cases.values():
        count = several[0].get_closest_marker("some").args[0]
        kept = {index * len(several) // count for index in range(count)}
        for index, item in enumerate(several):
            if index not in kept:
                item.add_marker(pytest.mark.long)
