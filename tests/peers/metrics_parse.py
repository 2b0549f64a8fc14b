"""Prometheus's own Python parsers read what `status --prometheus` prints, as its text format and as OpenMetrics.

    python3 -m venv V && V/bin/pip install prometheus_client
    shardrun status --prometheus | V/bin/python tests/peers/metrics_parse.py shardrun_run_step shardrun_run_loss

The arguments are families that must have a sample.
"""
import sys

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics


def samples(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def main():
    text = sys.stdin.read()
    plain = samples(parser.text_string_to_metric_families(text))
    strict = samples(openmetrics.text_string_to_metric_families(text))
    assert plain == strict, (plain, strict)
    names = {name for name, _ in strict}
    assert set(sys.argv[1:]) <= names, (sys.argv[1:], names)
    print(f"{len(strict)} samples of {len(names)} families")


if __name__ == "__main__":
    main()
