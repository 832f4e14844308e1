"""The URLs: the payments app's own at the root, Django's admin beside it."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("payments.urls")),
    path("admin/", admin.site.urls),
]
