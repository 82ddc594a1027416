"""One server and one browser for all tests of the page."""
import pytest

import chromium
from page_actions import open_page, serving


@pytest.fixture(scope="session")
def url():
    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if chromium.PROGRAM is None:
        pytest.skip("chromium is not installed")
    try:
        browser = chromium.Chromium(tmp_path_factory.mktemp("chromium"))
    except (AssertionError, OSError) as error:  # a packaged stub, or a machine that forbids it
        pytest.skip(f"chromium does not start here: {error}")
    browser.call("Page.addScriptToEvaluateOnNewDocument", source="""
        window.violations = [];
        document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective + " " + event.blockedURI));""")
    yield browser
    browser.close()


@pytest.fixture
def page(browser, url):
    """The page, open and connected, of an own server; afterwards nothing foreign was asked for and no script failed."""
    asked, failures = [], []
    browser.handlers = {}
    browser.call("Page.navigate", url="about:blank")  # a page of another server may still look for it
    browser.handlers = {
        "Network.requestWillBeSent": lambda event: asked.append(event["request"]["url"]),
        "Runtime.exceptionThrown": lambda event: failures.append(event["exceptionDetails"]),
        "Log.entryAdded": lambda event: event["entry"]["source"] != "network" and failures.append(event["entry"]),
    }
    open_page(browser, url)
    yield browser
    assert browser.run("violations") == []
    assert failures == []
    assert [address for address in asked if not address.startswith(url) and address != "about:blank"] == []
    browser.call("Fetch.disable")
