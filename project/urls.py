"""The URLs: the payments app's own at the root, Django's admin beside it."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("payments.urls")),
    path("admin/", admin.site.urls),
]

# With DEBUG=1, Django's own pages that explain stand in their place.
handler400 = "payments.views.bad_request"
handler404 = "payments.views.not_found"
