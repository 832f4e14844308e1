"""The statement formats that Sekali reads: one file each, and one line here."""

from typing import Final

from payments.statements.adyen import Adyen
from payments.statements.base import Statement
from payments.statements.midtrans import Midtrans
from payments.statements.plain import Plain
from payments.statements.razorpay import Razorpay
from payments.statements.stripe import Stripe
from payments.statements.xendit import Xendit

_STATEMENTS: Final[tuple[Statement, ...]] = (Adyen(), Midtrans(), Plain(), Razorpay(), Stripe(), Xendit())
REGISTRY: Final[dict[str, Statement]] = {statement.name: statement for statement in _STATEMENTS}
# A gateway's statements are of its own format, unless another is named.
OF_GATEWAY: Final[dict[str, str]] = {
    **{name: name for name in REGISTRY if name != "plain"},
    "standard_webhooks": "plain",
}
