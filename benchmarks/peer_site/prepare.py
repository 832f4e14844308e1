"""Make the peer's tables and rows. Prints the path that events are posted to.

DJANGO_SETTINGS_MODULE=benchmarks.peer_site.settings python -m benchmarks.peer_site.prepare SECRET BALANCES
"""

import sys

import django
from django.core.management import call_command
from django.urls import reverse


def main() -> None:
    django.setup()
    from django.db import connection
    from djstripe.models import Account, APIKey, WebhookEndpoint

    from benchmarks.peer_site.models import Balance

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Balance)
    Balance.objects.bulk_create(Balance(code=f"merchant-{n}") for n in range(1, int(sys.argv[2]) + 1))
    # Known account and key, or every event would ask Stripe's API whose it is.
    account = Account.objects.create(id="acct_bench", livemode=True)
    APIKey.objects.create(
        id="sk_bench",
        type="secret",
        secret="sk_live_000000000000000000000000",
        livemode=True,
        djstripe_owner_account=account,
    )
    endpoint = WebhookEndpoint.objects.create(
        id="we_bench",
        url="http://127.0.0.1/",
        secret=sys.argv[1],
        status="enabled",
        enabled_events=["*"],
        livemode=True,
        djstripe_owner_account=account,
    )
    sys.stdout.write(reverse("djstripe:djstripe_webhook_by_uuid", args=[endpoint.djstripe_uuid]) + "\n")


main()
