"""What one tenant can learn of another's prompts from how soon it is answered: nothing where their salts differ."""
import random
import time

import pytest

from watched_server import request_bytes

TOKENS = 256


def first_token_seconds(connection, prompt, salt):
    body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt, "temperature": 0}
    begin = time.perf_counter()
    connection.sendall(request_bytes("POST", "/v1/completions", body))
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    return time.perf_counter() - begin


def largest_distance(some, others):
    """Kolmogorov's and Smirnov's, between two samples' distributions."""
    def share(sample, limit):
        return sum(value <= limit for value in sample) / len(sample)
    return max(abs(share(some, limit) - share(others, limit)) for limit in some + others)


def probe(server, count, salt, source):
    """First-token times of prompts that tenant `a` has just asked, and of such that nobody has; in random order."""
    known, unknown = [], []
    with server.connect() as tenant, server.connect() as stranger:
        for place in source.sample([known, unknown] * count, 2 * count):
            prompts = [[source.randrange(400) for _ in range(TOKENS)] for _ in range(2)]
            first_token_seconds(tenant, prompts[0], "a")
            place.append(first_token_seconds(stranger, prompts[0 if place is known else 1], salt))
    return largest_distance(known, unknown)


@pytest.mark.extended
def test_how_soon_a_salted_answer_begins_tells_nothing_of_other_tenants(server):
    count, source = 250, random.Random(3)
    beyond = 1.628 * (2 / count) ** 0.5  # by chance in one of a hundred
    with server.survives(growth_mib=96):  # the prompts fill the KV cache, whose pages the system gives at their first use
        assert probe(server, 60, "a", source) > 0.5, "with one salt for both the times tell, so they would here"
        distances = [probe(server, count, "b", source)]
        if distances[0] > beyond:  # twice by chance in one of ten thousand
            distances.append(probe(server, count, "b", source))
        print(f"{count} probes each: the largest distances {distances}, at most {beyond:.3f} but by chance")
        assert distances[-1] <= beyond, distances
