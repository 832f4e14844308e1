"""The page that stands before every act: how many, which, what will come of it, and why. A GET changes nothing."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from payments import staff
from payments.admin import acts, cells, curl, event_page, finder
from payments.admin.act import Act, Refused
from payments.models import Claim, Event, Payment

SHOWN_MAX = 20  # of what was chosen, by name


def answer(site: AdminSite, request: HttpRequest, name: str) -> HttpResponse:
    """Show the page; or, with a reason posted, do it and lead back."""
    act = acts.ALL.get(name)
    if act is None:
        raise Http404
    if not act.is_allowed(request):
        raise PermissionDenied
    chosen = _chosen(act, request)
    fitting = [instance for instance in chosen if act.applies(instance)]
    form = act.form(request.POST if request.method == "POST" else None)
    if fitting and form.is_valid():
        why = staff.Why(actor=request.user.get_username(), reason=form.cleaned_data["reason"])
        try:
            return _done(site, request, act, fitting, form.cleaned_data, why)
        except Refused as refused:
            form.add_error(None, str(refused))
    context = {
        **site.each_context(request),
        "title": act.label,
        "act": act,
        "form": form,
        "count": len(fitting),
        "left_alone": len(chosen) - len(fitting),
        "named": [cells.link(instance) for instance in fitting[:SHOWN_MAX]],
        "unnamed": max(0, len(fitting) - SHOWN_MAX),
        "foreseen": act.foresee(fitting) if act.foresee and fitting else "",
        "back": cells.list_url(act.model),
    }
    return TemplateResponse(request, "admin/payments/act.html", context)


def _chosen(act: Act, request: HttpRequest) -> list[Any]:
    """Return what the address names. Raises BadRequest for what can't be ids, or too many of them."""
    given = set(request.GET.getlist("id"))
    if len(given) > acts.AT_ONCE_MAX or not all(pk.isascii() and pk.isdigit() and len(pk) <= 18 for pk in given):
        raise BadRequest("ids")
    rows = act.model._default_manager.filter(pk__in=given).order_by("pk")
    return list(rows.select_related("endpoint") if act.model in (Claim, Event, Payment) else rows)


def _done(
    site: AdminSite, request: HttpRequest, act: Act, chosen: Sequence[Any], given: dict[str, Any], why: staff.Why
) -> HttpResponse:
    if act.model is Event:
        return _shown(site, request, act, chosen[0], given, why)
    messages.success(request, act.do(chosen, given, why))
    if len(chosen) > 1:
        return HttpResponseRedirect(cells.list_url(act.model))
    return HttpResponseRedirect(finder.page_of(chosen[0]))


def _shown(
    site: AdminSite, request: HttpRequest, act: Act, event: Event, given: dict[str, Any], why: staff.Why
) -> HttpResponse:
    """Answer with what was asked to be seen, once it is recorded."""
    with transaction.atomic():
        act.do([event], given, why)
    if act.name == "download":
        return raw_file(event)
    sections = [event_page.body(request, event, revealed=True)]
    context = {**site.each_context(request), "title": event, "sections": sections}
    response = TemplateResponse(request, "admin/payments/page.html", context)
    response.headers["Cache-Control"] = "no-store"
    return response


def raw_file(event: Event) -> HttpResponse:
    """Return the body's bytes as a file to save. A browser must never take them for a page."""
    return HttpResponse(
        b"" if event.body is None else bytes(event.body),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{curl.filename(event)}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )
