from typing import Any

from payments import retention
from payments.management import pruning


class Command(pruning.Prune):
    help = (
        "Forgets the bodies of messages that were sent long ago, in chunks. Their rows stay, so that a key that is"
        " enqueued again is still known, and so do the bodies of what isn't sent. Safe beside relays, and to be killed:"
        " run it again."
    )

    def prune(self, **options: Any) -> tuple[dict[str, Any], str]:
        result = retention.prune_outbox(**options)
        line = f"{result.pruned:,} bodies forgotten, {result.kept:,} kept because they aren't sent yet"
        return result.as_json(), line
