"""How one reader wants to see the pages: language and time zone, each in a cookie. Nothing is stored about it here."""

from typing import Final

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import get_language, get_language_info
from django.utils.translation import gettext_lazy as _

from payments.admin import zones

COOKIE_AGE_S: Final = 365 * 24 * 3600


def _languages() -> list[tuple[str, str]]:
    # Each in its own name: whoever needs it can't read the present one.
    return [(code, str(get_language_info(code)["name_local"])) for code, _name in settings.LANGUAGES]


def _zones() -> list[tuple[str, str]]:
    return [(name, name.replace("_", " ")) for name in zones.names()]


class PreferencesForm(forms.Form):
    language = forms.ChoiceField(label=_("Language"), choices=_languages)
    zone = forms.ChoiceField(label=_("Time zone"), choices=_zones, help_text=_("UTC is always shown beside."))


def form_for(request: HttpRequest) -> PreferencesForm:
    """Return the form as posted, or filled with what is so now."""
    if request.method == "POST":
        return PreferencesForm(request.POST)
    return PreferencesForm(initial={"language": get_language(), "zone": zones.chosen(request)})


def kept(request: HttpRequest, form: PreferencesForm) -> HttpResponse:
    """Return the answer that keeps a valid form's choices."""
    response = HttpResponseRedirect(reverse("admin:index"))
    given = {settings.LANGUAGE_COOKIE_NAME: form.cleaned_data["language"], zones.COOKIE: form.cleaned_data["zone"]}
    for name, value in given.items():
        response.set_cookie(
            name,
            value,
            max_age=COOKIE_AGE_S,
            path=reverse("admin:index"),
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
    return response
