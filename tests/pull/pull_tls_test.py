"""`nibble pull` over TLS and through proxies."""
import pytest
from hub import ConnectProxy, Hub, Repository, dies_after
from pulling import COMMIT, MiB, Puller, shards

from nibble_program import ROOT


@pytest.fixture
def secure(tmp_path):
    hub = Hub(tls=True)
    hub.repositories["org/name"] = Repository({COMMIT: shards([5 * MiB])}, {"main": COMMIT})
    puller = Puller(hub, tmp_path)
    puller.variables["SSL_CERT_FILE"] = str(ROOT / "tests/data/tls/localhost.pem")
    yield hub, puller
    hub.close()


def test_tls_is_spoken_and_certificates_are_checked(secure):
    hub, puller = secure
    error = puller.refused(SSL_CERT_FILE=None, code=1)
    assert "the certificate of \"localhost\" is not trusted" in error and "SSL_CERT_FILE" in error
    assert "holds no certificates" in puller.refused(SSL_CERT_FILE="/dev/null", code=2)
    # The same certificate on a server whose address it does not name.
    other = Hub(tls=True, address="127.0.0.2")
    error = puller.refused(HF_ENDPOINT=other.url, code=1)
    assert 'the certificate of "127.0.0.2" is not trusted' in error and not hub.requests and not other.requests
    other.close()
    puller.pull(HF_ENDPOINT=hub.url.replace("localhost", "127.0.0.1"))
    assert hub.asked("cdn")


def test_a_redirect_may_not_lose_encryption(secure):
    hub, puller = secure
    hub.redirect = hub.cdn_url.replace("https", "http") + "/x"
    assert "without encryption" in puller.refused(code=1)


def test_connections_that_die_under_tls_are_taken_up(secure):
    hub, puller = secure
    hub.fail("^cdn/", dies_after(300_000), times=3)
    puller.pull()


def test_a_proxy_is_asked_to_connect(secure):
    hub, puller = secure
    proxy = ConnectProxy(password="Basic bWU6cDpAc3M=")
    address = f"127.0.0.1:{proxy.port}"
    error = puller.refused(https_proxy=f"http://{address}", code=2)
    assert "asks for a user and a password" in error
    puller.pull(HTTPS_PROXY=f"http://me:p%3A%40ss@{address}")
    assert {method for method, _ in proxy.targets} == {"CONNECT"}
    assert {target for _, target in proxy.targets} == {url.removeprefix("https://") for url in (hub.url, hub.cdn_url)}
    assert not [1 for _, headers in hub.asked("hub") if "Proxy-Authorization" in headers]
    proxy.targets.clear()
    puller.pull(https_proxy=f"http://{address}", no_proxy="other.example, localhost")
    assert not proxy.targets
    proxy.close()


def test_a_plain_hub_is_asked_through_a_proxy_by_its_whole_address(hub, puller):
    proxy = ConnectProxy()
    puller.pull(http_proxy=f"127.0.0.1:{proxy.port}")
    assert all(method == "GET" and target.startswith((hub.url, hub.cdn_url)) for method, target in proxy.targets)
    assert proxy.targets
    proxy.close()


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(puller):
    error = puller.refused(http_proxy="socks5://me:secret@127.0.0.1:1", code=2)
    assert "the variable http_proxy" in error and "secret" not in error
