"""The examples' queries, asked of a live server: by name and label here, and by Prometheus itself where it is installed."""
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nibble_program import ROOT
from serving import Server

MONITORING = ROOT / "examples/monitoring"
# Labels that Prometheus adds, and names of PromQL that stand where a metric could.
ADDED_LABELS = {"instance", "job"}
WORDS = {"sum", "by", "rate", "histogram_quantile", "resets", "and", "avg_over_time", "up"}


def dashboard_queries():
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    # What Grafana puts in for its variables.
    return [query.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$instance", ".*") for query in queries]


def rules():
    """(name of what is recorded or "", expression) of each rule, in the file's order."""
    text = re.sub(r">-\n\s+(.*(?:\n\s{10,}.*)*)", lambda folded: " ".join(folded[1].split()), (MONITORING / "rules.yaml").read_text())
    found = re.findall(r"- (record|alert): (\S+)\n\s+expr: (.*)", text)
    assert len(found) == 9
    return [(name if kind == "record" else "", expression) for kind, name, expression in found]


@pytest.fixture(scope="module")
def server():
    server = Server("--max-num-seqs", 4)
    for _ in range(2):  # the second finds its prompt in the cache
        status, _, _ = server.ask("/v1/chat/completions", {"model": "demo", "max_tokens": 20, "messages": [
            {"role": "user", "content": "Tell me a story about a fox and a bear who lived in a wood and were friends for many years"}]})
        assert status == 200
    yield server
    assert server.stop() == 0


def test_every_metric_and_label_of_a_query_is_there(server):
    samples = {}
    for family in text_string_to_metric_families(server.get("/metrics")[1]):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    recorded = {name for name, _ in rules() if name}
    for query in [*dashboard_queries(), *(expression for _, expression in rules())]:
        bare = re.sub(r'"[^"]*"', '""', query)
        names = set(re.findall(r"(?<![\w:])(?:vllm|nibble)[:_][\w:]+|(?<![\w:])process_\w+", bare))
        assert names or bare.startswith("up"), query
        for name in names - recorded:
            assert name in samples, (name, query)
        known = set().union(*(samples[name] for name in names - recorded), ADDED_LABELS)
        for label in re.findall(r"(\w+)\s*=~?\s*\"\"", bare):
            assert label in known, (label, query)
        for group in re.findall(r"by \(([^)]*)\)", bare):
            assert set(re.split(r",\s*", group)) <= known, (group, query)


class Prometheus:
    def __init__(self, folder, server):
        # Its own choice of a port is not told anywhere but in its log.
        text = (MONITORING / "prometheus.yaml").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{server.address[1]}").replace(" 5s", " 1s")
        assert text.count("1s") == 2 and "127.0.0.1:8000" not in text
        (folder / "prometheus.yaml").write_text(text)
        (folder / "rules.yaml").write_text((MONITORING / "rules.yaml").read_text())
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                                         "--web.listen-address=127.0.0.1:0"], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 60
        while True:
            said = (folder / "log").read_text()
            port = re.search(r"Listening on\" address=127\.0\.0\.1:(\d+)", said)
            if port and "Server is ready" in said:
                break
            assert self.process.poll() is None and time.monotonic() < end, said
            time.sleep(0.2)
        self.url = f"http://127.0.0.1:{port[1]}"

    def ask(self, query):
        with urllib.request.urlopen(self.url + "/api/v1/query?" + urllib.parse.urlencode({"query": query}), timeout=30) as answer:
            return json.loads(answer.read())["data"]["result"]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()


def test_prometheus_takes_the_rules():
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed; tools/packages.txt has prometheus in the group extended")
    done = subprocess.run(["promtool", "check", "rules", MONITORING / "rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_answers_every_query_with_series(server, tmp_path):
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is not installed; tools/packages.txt has it in the group extended")
    prometheus = Prometheus(tmp_path, server)
    try:
        # Rates need two scrapes, and something that happens between them.
        end = time.monotonic() + 60
        while not prometheus.ask("rate(vllm:generation_tokens_total[1m]) > 0 and rate(vllm:prefix_cache_queries_total[1m]) > 0"):
            server.ask("/v1/completions", {"model": "demo", "prompt": "Once upon a time there was a fox " * 8, "max_tokens": 4})
            assert time.monotonic() < end
            time.sleep(0.3)
        time.sleep(2.5)  # a round of the rules, and one of those that build on them
        for query in dashboard_queries():
            assert prometheus.ask(query), query
        for recorded, expression in rules():
            if recorded:
                assert prometheus.ask(recorded), recorded
            else:
                # An alert is about what is not so now: without its comparisons it finds series.
                for part in expression.split(" and "):
                    value = re.sub(r"\s*(==|>|<)\s*[\d.]+$", "", part)
                    if 'finished_reason="error"' in value or "resets" in value:
                        value = value.replace("resets", "rate")
                    assert prometheus.ask(value), value
        assert prometheus.ask("ALERTS") == [], "nothing is wrong here"
    finally:
        prometheus.stop()
