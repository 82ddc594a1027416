"""What the time of an answer tells: nothing of other tenants' prompts where salts differ, and nothing of the key."""
import bisect
import gc
import random
import string
import time

import pytest

from watched_server import Server, request_bytes


def first_token_seconds(connection, prompt, salt):
    body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt, "temperature": 0}
    begin = time.perf_counter()
    connection.sendall(request_bytes("POST", "/v1/completions", body))
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    return time.perf_counter() - begin


def largest_distance(some, others):
    """Kolmogorov's and Smirnov's, between two samples' distributions."""
    some, others = sorted(some), sorted(others)
    return max(abs(bisect.bisect(some, limit) / len(some) - bisect.bisect(others, limit) / len(others)) for limit in some + others)


def by_chance(count):
    """What two samples of one distribution reach in one of a hundred cases."""
    return 1.628 * (2 / count) ** 0.5


def probe(server, count, tokens, salt, source):
    """First-token times of prompts that tenant `a` has just asked, and of such that nobody has; in random order."""
    known, unknown = [], []
    with server.connect() as tenant, server.connect() as stranger:
        for place in source.sample([known, unknown] * count, 2 * count):
            prompts = [[source.randrange(400) for _ in range(tokens)] for _ in range(2)]
            first_token_seconds(tenant, prompts[0], "a")
            place.append(first_token_seconds(stranger, prompts[0 if place is known else 1], salt))
    return largest_distance(known, unknown)


@pytest.mark.extended  # as are all that measure how times are distributed
def test_how_soon_a_salted_answer_begins_tells_nothing_of_other_tenants(server):
    count, tokens = 500, 256
    source = random.Random(3)
    with server.survives(growth_mib=96):  # the prompts fill the KV cache, whose pages the system gives at their first use
        assert probe(server, 20, tokens, "a", source) > 0.6, "with one salt for both the times tell, so they would here"
        distances = [probe(server, count, tokens, "b", source)]
        if distances[0] > by_chance(count):  # twice by chance in one of ten thousand
            distances.append(probe(server, count, tokens, "b", source))
        print(f"{count} probes each: the largest distances {distances}, at most {by_chance(count):.3f} but by chance")
        assert distances[-1] <= by_chance(count), distances


LETTERS = string.ascii_letters + string.digits
KEY = "".join(random.Random(11).choices(LETTERS, k=6000))  # so long that a comparison that stops early would be seen


def guesses(right, source):
    """Requests with keys of the right length, of which the first `right` characters are right, and the next one is not."""
    for i in range(32):
        wrong = LETTERS[(LETTERS.index(KEY[right]) + 1 + i) % len(LETTERS)]
        yield request_bytes("GET", "/v1/models", Authorization="Bearer " + KEY[:right] + wrong + "".join(source.choices(LETTERS, k=len(KEY) - right - 1)))


def refusal_seconds(server, kinds, count, source):
    """For each kind of requests the times of `count` refusals, all in random order on one connection."""
    seconds = [[] for _ in kinds]
    order = list(range(len(kinds))) * count
    source.shuffle(order)
    gc.disable()
    try:
        with server.connect() as connection:
            for kind in order:
                request = source.choice(kinds[kind])
                begin = time.perf_counter_ns()
                connection.sendall(request)
                answer = connection.recv(1 << 16)
                seconds[kind].append(time.perf_counter_ns() - begin)
                assert answer.startswith(b"HTTP/1.1 401")
    finally:
        gc.enable()
    return seconds


@pytest.mark.extended
def test_how_soon_a_guess_at_the_key_is_refused_tells_nothing_of_the_key():
    count = 50_000
    source = random.Random(4)
    kinds = [list(guesses(right, source)) for right in (0, len(KEY) - 1)]
    server = Server("--api-key", KEY, "--log-level", "off", ready=False)
    server.port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
    distances = []
    while not distances or (distances[-1] > by_chance(count) and len(distances) < 2):
        nothing, almost = refusal_seconds(server, kinds, count, source)
        distances.append(largest_distance(nothing, almost))
    nanoseconds = next(shift for shift in range(0, 1_000_000, 50)
                       if largest_distance(nothing, [time + shift for time in nothing]) > 2 * by_chance(count))
    median = sorted(nothing)[count // 2]
    print(f"{2 * count} guesses: the largest distances {distances}, at most {by_chance(count):.4f} but by chance; median {median / 1000:.1f} us, "
          f"and {nanoseconds} ns more for some would have shown")
    assert server.stop() == 0
    assert distances[-1] <= by_chance(count), distances
