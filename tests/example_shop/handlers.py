"""What the shop does when money moves, in the transaction that moves it."""

import payments
from payments import outbox
from tests.example_shop.models import Order


@payments.handler("PaymentCaptured")
def mark_order_paid(booked: payments.Booked) -> None:
    """Mark the order as paid and tell the warehouse, once, when it is paid in full."""
    order = Order.objects.select_for_update().filter(number=booked.reference, currency=booked.currency).first()
    if order is None:
        return
    order.received += booked.amount_minor
    if order.paid_at is None and order.received >= order.price:
        order.paid_at = booked.occurred_at
        outbox.enqueue(
            topic="order.paid",
            data={"order": order.number, "amount": order.received, "currency": order.currency},
            key=f"order-{order.number}-paid",
            destinations=["warehouse"],
        )
    order.save()
