from typing import Any

from payments import retention
from payments.management import pruning


class Command(pruning.Prune):
    help = (
        "Forgets the bodies of old events, in chunks. Claims, replies and the ledger stay, and so do the bodies of"
        " events that are still quarantined. Safe beside deliveries, and to be killed: run it again."
    )

    def prune(self, **options: Any) -> tuple[dict[str, Any], str]:
        result = retention.prune_events(**options)
        line = f"{result.pruned:,} bodies forgotten, {result.kept:,} kept because they are still needed"
        return result.as_json(), line
