"""One search box: any id that a gateway, a merchant or the ledger knows something by, to the thing itself.

Exactly first, in one query over all indexes; by its beginning only if nothing is called exactly so.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.db.models import Model, QuerySet, Value
from django.http import HttpRequest

from payments.admin import cells, rows
from payments.admin.cells import Label
from payments.admin.search import Column
from payments.admin.tables import Section, table
from payments.facts import escape
from payments.models import (
    Account,
    Claim,
    Correction,
    Dispute,
    Endpoint,
    Event,
    OutboxMessage,
    Payment,
    Registration,
    Transfer,
)

ID_CHARS_MAX: Final = 1024  # longer than a business key can be
SHOWN_MAX: Final = 20  # of each kind; whoever gets so many types more of the id


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be looked for. related: what its table shows of other rows."""

    model: type[Model]
    columns: rows.Columns
    related: Sequence[str] = ()


# In the order in which they are shown. Each one's admin says in which columns its ids are.
KINDS: Final = (
    Kind(Claim, rows.CLAIMS, ["endpoint"]),
    Kind(Event, rows.FAILED, ["endpoint"]),
    Kind(Payment, rows.PAYMENTS, ["endpoint"]),
    Kind(Registration, rows.REGISTRATIONS),
    Kind(Dispute, rows.DISPUTES, ["payment"]),
    Kind(Transfer, rows.TRANSFERS, ["claim"]),
    Kind(Correction, rows.CORRECTIONS, ["claim"]),
    Kind(Account, rows.ACCOUNTS),
    Kind(OutboxMessage, rows.MESSAGES),
)
# Ids that stand inside business keys: a refund's, a fee's, a payout's.
_KEYED: Final = (Transfer, Correction)


@dataclass(slots=True)
class Found:
    """What an id belongs to. only: the page to go to, where there is just one thing."""

    sections: list[Section] = field(default_factory=list)
    only: str | None = None


def find(site: AdminSite, request: HttpRequest, term: str) -> Found:
    """Look for an id among what the reader may see."""
    kinds = [kind for kind in KINDS if site.get_model_admin(kind.model).has_view_permission(request)]
    term = term.strip()[:ID_CHARS_MAX]
    if not term or "\0" in term:
        return Found()
    endpoints = dict(Endpoint.objects.order_by("id").values_list("slug", "id"))
    pks = _read(_exact(site, kinds, term, endpoints)) or _read(_beginning(site, kinds, term, endpoints))
    return _found(kinds, pks)


def _exact(site: AdminSite, kinds: Iterable[Kind], term: str, endpoints: dict[str, int]) -> Iterator[Any]:
    """Yield a query for each index, for what is called exactly so; findings say it as `<endpoint>:<id>`."""
    slug, _colon, rest = term.partition(":")
    names = [(term, list(endpoints.values()))]
    if slug in endpoints and rest:
        plain = rest.replace("%3A", ":").replace("%25", "%")
        names += [(name, [endpoints[slug]]) for name in {rest, plain}]
    for kind in kinds:
        for column in _columns(site, kind):
            for name, endpoint_ids in names if column.endpoint else names[:1]:
                within = {f"{column.endpoint}__in": endpoint_ids} if column.endpoint else {}
                matching = _selected(kind, column).filter(**{column.path: name}, **within)
                yield _tagged(kind, matching.order_by(column.path)[:SHOWN_MAX])


def _beginning(site: AdminSite, kinds: Iterable[Kind], term: str, endpoints: dict[str, int]) -> Iterator[Any]:
    """Yield a query for each index, for what begins so, and for business keys of an object so called."""
    for kind in kinds:
        for column in _columns(site, kind):
            for endpoint_id in endpoints.values() if column.endpoint else [None]:
                within = {str(column.endpoint): endpoint_id} if column.endpoint else {}
                matching = _selected(kind, column).filter(**{f"{column.path}__startswith": term}, **within)
                yield _tagged(kind, matching.order_by(column.path)[:SHOWN_MAX])
        if kind.model in _KEYED:
            for slug in endpoints:
                keys = kind.model._default_manager.filter(key__startswith=f"{slug}:{escape(term)}:")
                yield _tagged(kind, keys.order_by("key")[:SHOWN_MAX])


def _columns(site: AdminSite, kind: Kind) -> Sequence[Column]:
    searched: Sequence[Column] = getattr(site.get_model_admin(kind.model), "searched", ())
    # An event that is claimed is found by its claim.
    return [column for column in searched if column.only is not None] if kind.model is Event else searched


def _selected(kind: Kind, column: Column) -> QuerySet[Any]:
    return kind.model._default_manager.filter(*([] if column.only is None else [column.only]))


def _tagged(kind: Kind, matching: QuerySet[Any]) -> QuerySet[Any, Any]:
    tagged: QuerySet[Any, Any] = matching.annotate(tag=Value(KINDS.index(kind))).values_list("tag", "pk")
    return tagged


def _read(queries: Iterable[Any]) -> dict[int, set[int]]:
    """Return the ids found, by the position of their kind: one query."""
    first, *others = list(queries) or [Claim.objects.none()]
    pairs = sorted(first.union(*others, all=True) if others else first)
    return {tag: {pk for _tag, pk in group} for tag, group in groupby(pairs, itemgetter(0))}


def _found(kinds: Iterable[Kind], pks: dict[int, set[int]]) -> Found:
    found = Found()
    for kind in kinds:
        if ids := pks.get(KINDS.index(kind)):
            instances = list(
                kind.model._default_manager.filter(pk__in=ids).select_related(*kind.related).order_by("-pk")[:SHOWN_MAX]
            )
            title: Label = kind.model._meta.verbose_name_plural or ""
            found.sections.append(table(title, instances, kind.columns))
            found.only = page_of(instances[0]) if len(instances) == 1 else None
    if len(found.sections) != 1:
        found.only = None
    return found


def page_of(instance: Model) -> str:
    """Return the page to go to: of a claim, its event's."""
    if isinstance(instance, Claim):
        event = Event.objects.filter(claim=instance, role=Event.Role.FIRST).only("pk").first()
        instance = event or instance
    return cells.page_url(type(instance), instance.pk)
