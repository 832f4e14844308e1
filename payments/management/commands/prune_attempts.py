from typing import Any

from payments import retention
from payments.management import pruning


class Command(pruning.Prune):
    help = (
        "Deletes the old rows of the attempt log, in chunks: which delivery came when, how it was answered, and the"
        " gaps. Nothing else needs them. Safe beside deliveries, and to be killed: run it again."
    )

    def prune(self, **options: Any) -> tuple[dict[str, Any], str]:
        pruned = retention.prune_attempts(**options)
        return {"pruned": pruned}, f"{pruned:,} attempts deleted"
