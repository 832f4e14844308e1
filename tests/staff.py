"""What tests of the admin share: who looks, and at which page."""

from typing import Any, Final

from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client

HOSTILE: Final = "<img src=x onerror=alert(1)>"
QUERIES_MAX: Final = 20
ACTS: Final = ("retry_claim", "reveal_event", "close_finding", "requeue_outboxmessage", "allocate_payment")


def page(instance: Any) -> str:
    """Return the address of an object's page."""
    return f"/admin/payments/{instance._meta.model_name}/{instance.pk}/change/"


def act(name: str, *instances: Any) -> str:
    """Return the address of the page that asks why."""
    return f"/admin/act/{name}/?" + "&".join(f"id={instance.pk}" for instance in instances)


def text(client: Client, url: str) -> str:
    """Return a page that can be seen."""
    answer = client.get(url)
    assert answer.status_code == 200, (url, answer.status_code)
    return str(answer.content.decode())


def all_models() -> list[Any]:
    return [model for model in admin.site._registry if model._meta.app_label == "payments"]


def everything() -> dict[str, list[Any]]:
    """Return all rows of the payments, to be compared with those of later."""
    return {model.__name__: list(model.objects.order_by("pk").values_list()) for model in all_models()}


def member(name: str, *codenames: str) -> User:
    """Return a member of staff who may see all payments, and do these things."""
    user = User.objects.create_user(name, is_staff=True)
    of_payments = Permission.objects.filter(content_type__app_label="payments")
    user.user_permissions.set(
        of_payments.filter(codename__startswith="view_") | of_payments.filter(codename__in=codenames)
    )
    return user
