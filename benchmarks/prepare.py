"""Make the rows that a measured database begins with: the `demo` endpoint, and merchants with accounts.

DATABASE_URL=… python -m benchmarks.prepare MERCHANTS
"""

import sys

import django


def main() -> None:
    django.setup()
    from payments import models, payees

    models.Endpoint.objects.create(slug="demo", gateway="standard_webhooks")
    merchants = range(1, int(sys.argv[1]) + 1)
    payees.open_accounts([(f"merchant-{n}", "IDR", "liability") for n in merchants])
    # On demand otherwise; the views that stand in for the product's don't do that.
    models.Account.objects.create(code="receivable:demo", currency="IDR", kind="asset", endpoint_id=1)


main()
