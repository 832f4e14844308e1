"""Nothing that staff send changes history."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from payments.models import Event
from tests import staff

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", ["add/", "{pk}/change/", "{pk}/delete/", ""])
@pytest.mark.parametrize("who", ["viewer", "superuser"])
def test_crafted_posts_are_refused(capture: Event, client: Client, viewer: Client, path: str, who: str) -> None:
    """No permission makes history editable."""
    if who == "superuser":
        client.force_login(User.objects.create_superuser("root"))
    rows_before = staff.everything()

    for model in staff.all_models():
        newest = model.objects.order_by("-pk").first()
        url = f"/admin/payments/{model._meta.model_name}/{path.format(pk=newest.pk if newest else 1)}"
        form = {"action": "delete_selected", "_selected_action": "1", "index": "0", "post": "yes", "key": "x"}
        assert client.post(url, form).status_code in ((403,) if newest else (403, 302)), url

    assert staff.everything() == rows_before


def test_pages_offer_nothing_to_edit(capture: Event, viewer: Client) -> None:
    """No save, delete or add; no field but the search box."""
    for url in (staff.page(capture), "/admin/payments/event/"):
        text = staff.text(viewer, url)

        assert "_save" not in text
        assert "/delete/" not in text
        assert "/add/" not in text


def test_staff_without_permission_see_nothing(capture: Event, client: Client) -> None:
    """Neither the page nor the raw bytes."""
    client.force_login(User.objects.create_user("newcomer", is_staff=True))

    for url in (staff.page(capture), "/admin/payments/event/", f"/admin/act/download/?id={capture.pk}"):
        assert client.get(url).status_code == 403
