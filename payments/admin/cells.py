"""How one value looks in a list or on a page: a link, an amount, a moment, a piece of JSON.

Everything from outside passes through format_html or the template's escaping: text is only ever text.
"""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Model
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from payments.admin import amounts, bodies, codes

Label = str | Promise
Column = Callable[[Any], str]

EMPTY = "–"  # noqa: RUF001 (an en dash, as in tables)
JSON_CHARS_MAX = 20_000  # a finding's detail is far smaller; a page must stay a page


def page_url(model: type[Model], pk: object) -> str:
    """Return the address of an object's page."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[pk])


def list_url(model: type[Model], **lookups: object) -> str:
    """Return the address of a model's list, narrowed by lookups that its admin allows."""
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{urlencode(lookups)}" if lookups else url


def link(instance: Model | None, text: object = None) -> str:
    """Return a link to an object's page, or a dash."""
    if instance is None:
        return EMPTY
    url = page_url(type(instance), instance.pk)
    return format_html('<a href="{}">{}</a>', url, codes.name_of(instance) if text is None else text)


def amount(amount_minor: int | None, currency: str | None) -> str:
    """Return an amount that doesn't break over two lines."""
    if amount_minor is None:
        return EMPTY
    return format_html('<span class="amount">{}</span>', amounts.shown(amount_minor, currency))


def number(value: int) -> str:
    """Return a number in groups, as the reader's language writes them."""
    return str(formats.number_format(value, use_l10n=True, force_grouping=True))


def joined(shown: Iterable[str]) -> str:
    """Return several values as one cell, each on a line of its own."""
    return format_html_join(SafeString("<br>"), "{}", ((one,) for one in shown)) or EMPTY


def moment(value: datetime | None) -> str:
    """Return a time to the second in the reader's zone, with UTC beside; the microseconds show when pointed at."""
    if value is None:
        return EMPTY
    utc, local = value.astimezone(UTC), timezone.localtime(value)
    exact = utc.isoformat()
    if not local.utcoffset():
        return format_html('<time datetime="{}" title="{}">{} UTC</time>', exact, exact, f"{utc:%Y-%m-%d %H:%M:%S}")
    beside = f"{utc:%H:%M:%S} UTC" if utc.date() == local.date() else f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return format_html(
        '<time datetime="{}" title="{}">{} <span class="utc">{}</span></time>',
        exact,
        exact,
        f"{local:%Y-%m-%d %H:%M:%S %Z}",
        beside,
    )


def block(text: str) -> str:
    """Return a text that keeps its lines."""
    return format_html('<pre class="block">{}</pre>', bodies.visible(text))


def pretty_json(value: object) -> str:
    """Return a JSON value as indented text."""
    return block(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)[:JSON_CHARS_MAX])


def column(label: Label, show: Column, *, name: str = "") -> Column:
    """Return a function for list_display and fields, with its heading; `name` becomes its CSS class."""

    @admin.display(description=label)  # type: ignore[arg-type]
    def shown(instance: Any) -> str:
        return show(instance)

    shown.__name__ = name or str(label).lower().replace(" ", "_")
    return shown


def amount_column(name: str, label: Label, *, currency: str = "currency") -> Column:
    """Return a column of amounts; `currency` may lead over a foreign key: "payment.currency"."""
    currency_of = attrgetter(currency)
    return column(label, lambda row: amount(getattr(row, name), currency_of(row)), name=name)


def moment_column(name: str, label: Label) -> Column:
    return column(label, lambda row: moment(getattr(row, name)), name=name)


def link_column(name: str, label: Label) -> Column:
    return column(label, lambda row: link(getattr(row, name)), name=name)


def yes_or_no(value: bool) -> str:
    return gettext("yes") if value else gettext("no")


def yes_or_no_column(name: str, label: Label) -> Column:
    """Return a column of words: Django's red cross says that something is wrong."""
    return column(label, lambda row: yes_or_no(getattr(row, name)), name=name)


def code_column(name: str, label: Label) -> Column:
    return column(label, lambda row: codes.shown(getattr(row, name)), name=name)


def json_column(name: str, label: Label) -> Column:
    return column(label, lambda row: pretty_json(getattr(row, name)), name=name)
