"""What an act of staff is: a permission, a reason, and a function that the command calls too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from payments import staff
from payments.admin.cells import Label


class Refused(Exception):
    """The act can't be done so; the text tells the reader why. Nothing was changed."""


class ReasonForm(forms.Form):
    """Why somebody does it."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=1000,
        widget=forms.Textarea({"rows": 3, "cols": 60, "autofocus": True}),
        help_text=_("Kept for ever, with your name."),
    )


class AllocationForm(ReasonForm):
    """Whose money it is."""

    account = forms.CharField(
        label=_("Payee's account"),
        max_length=255,
        widget=forms.TextInput({"autofocus": True}),
        help_text=_("Its code: merchant-1"),
    )
    field_order = ("account", "reason")


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that staff may do.

    applies    what it can be done to; others that were chosen are left alone
    offers     where its button is shown; None: wherever it applies
    do         does it to all of them, or raises Refused; returns what to tell the reader
    foresee    what would come of it, where that can be known
    """

    name: str
    model: type[Model]
    permission: str
    label: Label
    explained: Label
    applies: Callable[[Any], bool]
    do: Callable[[Sequence[Any], Mapping[str, Any], staff.Why], str]
    offers: Callable[[Any], bool] | None = None
    form: type[ReasonForm] = ReasonForm
    foresee: Callable[[Sequence[Any]], str] | None = None

    def is_allowed(self, request: HttpRequest) -> bool:
        """Say whether the reader may do it, and see what it is done to."""
        may_view = f"payments.view_{self.model._meta.model_name}"
        return bool(request.user.has_perms([self.permission, may_view]))

    def is_offered(self, instance: Model) -> bool:
        """Say whether an object's page shows the act's button."""
        return isinstance(instance, self.model) and (self.offers or self.applies)(instance)

    def url(self, pks: Sequence[object]) -> str:
        """Return the address of the page that asks for the reason."""
        return f"{reverse('admin:act', args=[self.name])}?{urlencode([('id', pk) for pk in pks])}"
