"""Requests as bytes, of which two readers could make different things, or which only look so: what is sent, and what may
be answered. Behind each a test sends another request, and sees by the number of answers where the first one ended."""

OK = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
BODY = b'{"prompt":"a","max_tokens":1}'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SIZE = b"Content-Length: %d\r\n" % len(BODY)
BEHIND = b"GET /version HTTP/1.1\r\n" + OK + b"\r\n"
UPGRADE = b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


def get(fields=b"", target=b"/health", method=b"GET", version=b"HTTP/1.1", host=OK):
    return b"%s %s %s\r\n" % (method, target, version) + host + fields + b"\r\n"


def post(fields, body=b"", method=b"POST", version=b"HTTP/1.1"):
    return b"%s /v1/completions %s\r\n" % (method, version) + OK + JSON + fields + b"\r\n" + body


def chunks(line=None, data=BODY, end=b"\r\n", last=b"0\r\n\r\n"):
    """A chunked body of one chunk whose size is written as `line`."""
    return (b"%x\r\n" % len(BODY) if line is None else line) + data + end + last


def named(kind, values):
    return ((f"{kind} {value!r}"[:200], value) for value in values)


def request_lines():
    for name, line in named("request line", (
            b"GET /health", b"GET", b"/health HTTP/1.1", b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1", b" GET /health HTTP/1.1",
            b"GET /health HTTP/1.1 ", b"GET\t/health HTTP/1.1", b"GET /health\tHTTP/1.1", b"GET /hea lth HTTP/1.1", b"GET HTTP/1.1", b"GET  HTTP/1.1",
            b"GET health HTTP/1.1", b"GET /health#a HTTP/1.1", b"GET #/health HTTP/1.1", b"GET * HTTP/1.1", b"GET /hea\0lth HTTP/1.1",
            b"GET /h\xc3\xa9 HTTP/1.1", b"GET /\xc0\xaf HTTP/1.1", b"GET /\x7f HTTP/1.1", b"GET /\x1b HTTP/1.1", b"GET http:// HTTP/1.1",
            b"GET http://a@b/health HTTP/1.1", b"GET http:///health HTTP/1.1", b"GET ftp://localhost/health HTTP/1.1", b"GET ://localhost/ HTTP/1.1",
            b"CONNECT localhost:80 HTTP/1.1", b"GET /health HTTP/1", b"GET /health HTTP/1.", b"GET /health HTTP/.1", b"GET /health HTTP/01.1",
            b"GET /health HTTP/1.10", b"GET /health HTTP/1.1.1", b"GET /health http/1.1", b"GET /health Http/1.1", b"GET /health HTTP/ 1.1",
            b"GET /health HTTP /1.1", b"GET /health HTTPS/1.1", b"GET /health HTTP-1.1", b"GET /health HTTP/1,1", b"GET /health HTTP/-1.1",
            b"GET /health HTTP/1.1\0", b"GET /health 1.1", b"G(T /health HTTP/1.1", b"G\xc3\x89T /health HTTP/1.1", b"GET: /health HTTP/1.1",
            b"\"GET\" /health HTTP/1.1", b"GET\x0b/health HTTP/1.1", b"GET\x0c/health HTTP/1.1", b"   ", b"\0")):
        yield name, line + b"\r\n" + OK + b"\r\n", 400
    for version in (b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.1", b"HTTP/9.9"):
        yield f"version {version}", get(version=version), 505
    yield "HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)
    yield "TLS on a port in the clear", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400
    yield "bytes of any kind", bytes(range(256)) + b"\r\n\r\n", 400
    for target in (b"/health%00", b"/a%0d%0ab", b"/%", b"/%4", b"/%zz", b"/%ff", b"/%c0%af", b"%2fhealth"):
        yield f"target {target}", get(target=target), 400
    yield "a method of 100 KB", get(method=b"G" * 100_000), (400, 431)
    yield "a target of 20 KB", get(target=b"/" + b"a" * 20_000), 414
    yield "a target of 100 KB", get(target=b"/" + b"a" * 100_000), (414, 431)
    yield "only line ends", b"\r\n" * 20_000, (400, 431)


def line_ends():
    for name, data in {
            "a bare line feed after the request line": b"GET /health HTTP/1.1\n" + OK + b"\r\n",
            "a bare line feed after a field": b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
            "a bare line feed at the end": b"GET /health HTTP/1.1\r\n" + OK + b"\n",
            "bare line feeds alone": b"GET /health HTTP/1.1\nHost: localhost\n\n",
            "a bare carriage return after the request line": b"GET /health HTTP/1.1\r" + OK + b"\r\n",
            "bare carriage returns alone": b"GET /health HTTP/1.1\rHost: localhost\r\r\n\r\n",
            "two carriage returns": b"GET /health HTTP/1.1\r\r\n" + OK + b"\r\n",
            "a line feed before": b"\nGET /health HTTP/1.1\r\n" + OK + b"\r\n"}.items():
        yield name, data, 400


def fields():
    for name, line in named("field", (
            b"X : a", b"X\t: a", b"X", b": a", b":", b"X\0: a", b"X: a\0b", b"X: a\rb", b"X: \x07\x08\x0b", b"X: \x7f", b"X: a\r\n b", b"X: a\r\n\tb",
            b"X:\r\n b", b"B[d: a", b"B d: a", b"B\"d: a", b"B/d: a", b"B{d}: a", b"B@d: a", b"B\xc3\xabd: a", b"Content-Length : 5", b"Content\tLength: 5",
            b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked", b"Transfer-Encoding\0: chunked", b"\0Transfer-Encoding: chunked",
            b"\xefTransfer-Encoding: chunked", b"X: a\r\n Transfer-Encoding: chunked", b"Transfer-Encoding:\r\n chunked",
            b"Transfer-Encoding\r\n : chunked", b"Content-Length:\r\n 5", b"Host\r\n : b", b"Host : localhost")):
        yield name, get(line + b"\r\n"), 400
    for name, begin in named("before the first field", (b" \r\n", b"\t\r\n", b" X: a\r\n", b"\tHost: b\r\n")):
        yield name, b"GET /health HTTP/1.1\r\n" + begin + OK + b"\r\n", 400
    yield "a value of 100 KB", get(b"X: " + b"a" * 100_000 + b"\r\n"), 431
    yield "a name of 100 KB", get(b"X" * 100_000 + b": a\r\n"), (400, 431)
    yield "a thousand fields", get(b"X: y\r\n" * 1000), 431
    yield "an unknown expectation", post(b"Expect: a-miracle\r\nContent-Length: 4\r\n"), 417
    yield "two expectations", post(b"Expect: 100-continue, a-miracle\r\nContent-Length: 4\r\n"), 417


def hosts():
    yield "no host", get(host=b""), 400
    for name, value in named("host", (
            b"", b" ", b"a/b", b"a/", b"a/#@b", b"u@a", b"u:p@a", b"http://a", b"a b", b"a,b", b"localhost, b", b"a\\b", b"a?b", b"a#b", b"[::1",
            b"::1]", b"[]", b"[g]", b"[::1]a", b"[::1]:a", b"localhost:", b"localhost:a", b"localhost:-1", b"localhost:+80", b"localhost:80:80",
            b"localhost:123456", b":80", b"a\xc3\xa9", b"a\0b", b"a;b", b"a\"b", b"<a>", b"x/openapi.json?x=", b"localhost/health", b"a^b", b"a|b")):
        if name != "host b'localhost:'":  # an empty port is one that is not there
            yield name, get(host=b"Host: " + value + b"\r\n"), 400
    for name, more in named("with a second host", (OK, b"Host: b\r\n", b"HOST: b\r\n", b"host:\r\n")):
        yield name, get(more), 400
        yield f"{name} first", get(host=more + OK), 400


def lengths():
    for name, value in named("length", (
            b"", b" ", b"abc", b"+29", b"-29", b"-0", b"+0", b"0x1d", b"1d", b"0o35", b"2_9", b"2 9", b"29 29", b"29, 29", b"29,29", b"29, 30", b"29, 29, 29",
            b"29,", b",29", b"29;", b"29.0", b"29e0", b"'29'", b"\"29\"", b"\xd9\xa2\xd9\xa9", b"\x0b29", b"29\x0c", b"29\0", b"29\r", b"29\xa0")):
        yield name, post(b"Content-Length: " + value + b"\r\n", BODY), 400
    for name, value in named("length", (b"99999999", b"18446744073709551615", b"18446744073709551616", b"99999999999999999999999", b"9" * 500)):
        yield name, post(b"Content-Length: " + value + b"\r\n"), 413
    for name, other in named("a second length", (b"29", b"30", b"0", b"", b"abc")):
        yield name, post(SIZE + b"Content-Length: " + other + b"\r\n", BODY), 400
    yield "a second length in other case", post(SIZE + b"CONTENT-LENGTH: 5\r\n", BODY), 400


def codings():
    """RFC 9112, 6.3: where `chunked` is not the last coding, 400 and the end."""
    for name, value in named("coding", (
            b"", b"xchunked", b"chunkedx", b"gzip", b"identity", b"cow", b"chunked, identity", b"chunked, gzip", b"chunked,", b"chunked;a=b", b"chunked ;",
            b"'chunked'", b"\"chunked\"", b"chun ked", b"chunked chunked", b"x chunked", b"\x0bchunked", b"\x0cchunked", b"chunked\0", b"chunked\x0b",
            b"chunked\xa0", b"\xef\xbb\xbfchunked", b"chunked, cow")):
        yield name, post(b"Transfer-Encoding: " + value + b"\r\n", chunks()), 400
        yield f"{name} and a length", post(b"Transfer-Encoding: " + value + b"\r\n" + SIZE, chunks()), 400
    for name, value in named("coding", (b"gzip, chunked", b"chunked, chunked", b", chunked", b"identity,chunked", b"deflate , CHUNKED")):
        yield name, post(b"Transfer-Encoding: " + value + b"\r\n", chunks()), 501
        yield f"{name} and a length", post(b"Transfer-Encoding: " + value + b"\r\n" + SIZE, chunks()), 400
    for name, second in named("a second coding", (b"chunked", b"identity", b"gzip", b"")):
        yield name, post(CHUNKED + b"Transfer-Encoding: " + second + b"\r\n", chunks()), 400
        yield f"{name} first", post(b"Transfer-Encoding: " + second + b"\r\n" + CHUNKED, chunks()), 400
    yield "chunked in HTTP/1.0", post(CHUNKED, chunks(), version=b"HTTP/1.0"), 400


def length_and_coding():
    """Either could hide a whole request from one of two readers."""
    for method in (b"GET", b"HEAD", b"POST", b"OPTIONS"):
        hidden = method + b" /version HTTP/1.1\r\n" + OK + b"\r\n"
        for coding in (b"chunked", b"Chunked", b"chunked ", b"\tchunked", b"identity"):
            line = b"Transfer-Encoding: " + coding + b"\r\n"
            name = f"hidden {method.decode()}, {coding!r}"
            length = b"Content-Length: %d\r\n" % (5 + len(hidden))
            yield f"{name}, behind a last chunk", post(length + line, b"0\r\n\r\n" + hidden, method), 400
            yield f"{name}, in a chunk", post(line + b"Content-Length: 4\r\n", b"%x\r\n" % len(hidden) + hidden + b"\r\n0\r\n\r\n", method), 400


def chunk_sizes():
    size = b"%x" % len(BODY)
    for name, line in named("chunk size", (
            b"\r\n", b";\r\n", b"g\r\n", b"-1d\r\n", b"+1d\r\n", b"0x1d\r\n", b"1_d\r\n", b" 1d\r\n", b"\t1d\r\n", b"1d \r\n", b"1d\t\r\n", b"1 d\r\n", b"1d,1d\r\n",
            b"1d x\r\n", b"1d=\r\n", b"1d;\r\n", b"1d; \r\n", b"1d;;\r\n", b"1d;=a\r\n", b"1d;a=\r\n", b"1d;a[=b\r\n", b"1d;a b\r\n", b"1d;a=\"b\r\n",
            b"1d;a=\"b\\\"\r\n", b"1d;a=b c\r\n", b"1d;\0\r\n", b"1d;a=\x07\r\n", b"1d;a\rb\r\n", b"1d;a=\"\x7f\"\r\n", b"1d\n", b"1d;a\n", b"1d\r", b"1d\0\r\n",
            b"\x0b1d\r\n", b"1d\xa0\r\n", b"\xef\xbc\x91\r\n", b"-0\r\n", b"+0\r\n", b"0x0\r\n")):
        yield name, post(CHUNKED, chunks(line)), 400
    for name, line in named("chunk size", (b"FFFFFFFFFFFFFFFF\r\n", b"10000000000000000\r\n", b"10000000000000001d\r\n", b"7FFFFFFFFFFFFFFF\r\n", b"FFFFFFFF\r\n")):
        yield name, post(CHUNKED, chunks(line)), (400, 413)
    yield "a chunk size of 300 digits", post(CHUNKED, chunks(b"0" * 300 + size + b"\r\n")), 400
    yield "an extension of 64 KB", post(CHUNKED, chunks(size + b";a=" + b"b" * 65536 + b"\r\n")), 400
    for name, end in named("a chunk that ends", (b"", b"\n", b"\r", b"x\r\n", b"\0\r\n", b" \r\n", b"\n\r", b"!!\r\n")):
        yield name, post(CHUNKED, chunks(end=end)), 400
    yield "a chunk shorter than it says", post(CHUNKED, chunks(data=BODY[:-2])), 400


def trailers():
    for name, line in named("trailer", (b"X", b"X : a", b" X: a", b"\tX: a", b": a", b"X: a\0", b"X: a\rb", b"X: \x07", b"X\0: a", b"X: a\r\n b")):
        yield name, post(CHUNKED, chunks(last=b"0\r\n" + line + b"\r\n\r\n")), 400
    for name, end in named("a trailer that ends", (b"\n", b"X: a\n\r\n", b"X: a\r\n\n")):
        yield name, post(CHUNKED, chunks(last=b"0\r\n" + end)), 400
    yield "a trailer without end", post(CHUNKED, chunks(last=b"0\r\n" + b"X: y\r\n" * 5000)), 431


def all_of(*families):
    found = {}
    for family in families:
        for name, data, statuses in family():
            assert name not in found, name
            found[name] = data, statuses if isinstance(statuses, tuple) else (statuses,)
    return found


# Refused with one of the statuses, and the connection closes: nothing behind it is answered.
REFUSED = all_of(request_lines, line_ends, fields, hosts, lengths, codings, length_and_coding, chunk_sizes, trailers)


def served():
    """What is unusual and clear: answered so, and the request behind it too."""
    body = chunks()
    yield "a plain request", get(), 200
    yield "40 fields and a value of 4 KB", get(b"X: y\r\n" * 40 + b"Y: " + b"a" * 4096 + b"\r\n"), 200
    yield "line ends before the request", b"\r\n\r\n" + get(), 200
    yield "a value with bytes beyond ASCII", get(b"X: \xc3\xa9\r\n"), 200
    yield "an empty value", get(b"X:\r\n"), 200
    yield "a field of other case and no space", get(host=b"hOST:localhost\r\n"), 200
    yield "a host with an empty port", get(host=b"Host: localhost:\r\n"), 200
    for target, status in ((b"http://localhost/health", 200), (b"HTTP://localhost:80/health", 200), (b"http://localhost", 200), (b"https://localhost/health", 200),
                           (b"http://other.example.com/health", 403), (b"/health?a=b", 200), (b"/%68ealth", 200), (b"/health%2f", 404), (b"/%2568ealth", 404),
                           (b"/a\\b", 404), (b"//health", 404), (b"/./health", 404), (b"/" + b"a" * 8000, 404)):
        yield f"target {target[:60]}", get(target=target), status
    yield "a target of another name than the host", get(target=b"http://localhost/health", host=b"Host: evil.com\r\n"), 200  # the target's counts
    yield "OPTIONS *", get(target=b"*", method=b"OPTIONS"), (200, 204, 404)
    for method in (b"get", b"BREW", b"TRACE", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"CONNECT", b"PROPFIND"):
        yield f"method {method}", get(method=method), 405
    yield "TRACE with a body", post(SIZE, BODY, method=b"TRACE"), 405
    for version, status in ((b"HTTP/1.2", 200), (b"HTTP/1.9", 200)):
        yield f"version {version}", get(version=version), status
    for name, more in named("upgrade", (UPGRADE, b"Connection: Upgrade\r\n" + UPGRADE, b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
                                        b"Connection: Upgrade\r\nUpgrade: made-up/1.0\r\n", b"Connection: Upgrade\r\n" + UPGRADE.replace(b"13", b"99"))):
        yield name, get(more), 200
        yield f"{name} by POST", post(more + SIZE, BODY), 200
    for name, value in named("range", (b"bytes=0-10", b"bytes=abc", b"bytes=" + b"0-," * 1000)):
        yield name, get(b"Range: " + value + b"\r\n"), 200
    yield "an unknown type asked for", get(b"Accept: application/x-nonsense\r\n"), 200
    for name, value in named("length", (b" 29", b"29 ", b"\t29", b"  29\t", b"029", b"0029")):
        yield name, post(b"Content-Length:" + value + b"\r\n", BODY), 200
    yield "a length in an unknown field", post(SIZE + b"Content_Length: 99\r\n", BODY), 200
    yield "a coding in an unknown field", post(SIZE + b"Transfer_Encoding: chunked\r\n", BODY), 200
    for name, method in named("a body with", (b"GET", b"HEAD", b"OPTIONS", b"DELETE")):
        yield name, get(b"Content-Length: 5\r\n", method=method) + b"hello", (200, 405)
        yield f"{name}, in chunks", get(CHUNKED, method=method) + b"5\r\nhello\r\n0\r\n\r\n", (200, 405)
        yield f"{name}, the beginning of a request", get(b"Content-Length: 22\r\n", method=method) + b"GET /health HTTP/1.1\r\n", (200, 405)
    yield "no length", post(b""), 400  # no JSON either
    yield "length 0", post(b"Content-Length: 0\r\n"), 400
    yield "length 00", post(b"Content-Length: 00\r\n"), 400
    yield "no chunks but the last", post(CHUNKED, b"0\r\n\r\n"), 400
    for name, value in named("coding", (b"chunked", b"Chunked", b"CHUNKED", b" chunked ", b"\tchunked\t")):
        yield name, post(b"Transfer-Encoding:" + value + b"\r\n", body), 200
    for name, line in named("chunk size", (b"1D\r\n", b"001d\r\n", b"1d;a\r\n", b"1d;a=b\r\n", b"1d ; a = b ; c\r\n", b"1d;a=\"b;\\\" c\"\r\n")):
        yield name, post(CHUNKED, chunks(line)), 200
    yield "a chunk for each byte", post(CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"), 200
    for name, line in named("trailer", (b"X: a", b"X:", b"Content-Length: 50", b"Transfer-Encoding: chunked", b"Host: evil.com", b"Authorization: Bearer x",
                                        b"Content-Type: text/plain", b"Connection: close")):
        yield name, post(CHUNKED, chunks(last=b"0\r\n" + line + b"\r\n\r\n")), 200
    yield "100-continue and the body at once", post(SIZE + b"Expect: 100-continue\r\n", BODY), 200
    yield "two types", post(b"Content-Type: text/plain\r\n" + SIZE, BODY), 415
    yield "an unknown type", post(SIZE, BODY).replace(b"application/json", b"application/x-nonsense"), 415
    yield "a compressed body", post(b"Content-Encoding: gzip\r\nContent-Length: 4\r\n", b"\x1f\x8b\x08\x00"), 415


SERVED = all_of(served)


def ending():
    """Answered, and then the connection closes."""
    yield "HTTP/1.0 without a host", b"GET /health HTTP/1.0\r\n\r\n", 200
    yield "HTTP/1.0 with one", get(version=b"HTTP/1.0"), 200
    yield "HTTP/1.0 that would upgrade", get(b"Connection: Upgrade\r\n" + UPGRADE, version=b"HTTP/1.0"), 200
    yield "HTTP/1.0 that expects 100", post(SIZE + b"Expect: 100-continue\r\n", BODY, version=b"HTTP/1.0"), 200
    yield "close", get(b"Connection: close\r\n"), 200
    yield "close in a list of other case", get(b"Connection: x, CLOSE\r\n"), 200


ENDING = all_of(ending)

# Never whole, so never answered but by a deadline.
UNFINISHED = {
    "nothing": b"",
    "half a request line": b"GET /hea",
    "a head without its end": b"GET /health HTTP/1.1\r\n" + OK + b"X: a",
    "a body shorter than its length": post(b"Content-Length: 10\r\n", b"hello"),
    "a body without its last chunk": post(CHUNKED, b"5\r\nhello\r\n"),
    "a chunk cut short": post(CHUNKED, b"5\r\nhel"),
    "a trailer without its end": post(CHUNKED, b"0\r\nX: a\r\n"),
    "no last line end": get()[:-1],
}
