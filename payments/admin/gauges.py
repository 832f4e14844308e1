"""The limits now, of all processes of this server together: what /metrics says of them."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from payments import limits, metrics, views


@dataclass(slots=True)
class Gauge:
    """One limit. permits: of one process; of all: permits held, threads waiting, refusals since the start."""

    name: str
    permits: int
    in_use: int = 0
    waiting: int = 0
    refused: int = 0


_FIELDS = {
    "payments_limit_in_use": "in_use",
    "payments_limit_waiting": "waiting",
    "payments_limit_refused_total": "refused",
}


def read() -> tuple[list[Gauge], int]:
    """Return the limits, and how many deliveries were refused unverified since the server's start."""
    views.batcher()  # or its limit would be missing until this process has served a delivery
    gauges = {limit.name: Gauge(limit.name, limit.permits) for limit in limits.all_limits()}
    refused = 0
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if sample.name == "payments_deliveries_total" and sample.labels["outcome"] == "refused":
                refused += int(sample.value)
            elif (field := _FIELDS.get(sample.name)) and sample.labels["limit"] in gauges:
                setattr(gauges[sample.labels["limit"]], field, int(sample.value))
    return [gauges[name] for name in sorted(gauges)], refused
