"""The addresses that gateways, load balancers and Prometheus call. None of them ever redirects."""

from django.urls import path

from payments import views

urlpatterns = [
    path("webhooks/<str:slug>", views.webhook),
    path("webhooks/<str:slug>/", views.webhook),
    path("livez", views.livez),
    path("readyz", views.readyz),
    path("metrics", views.metrics_page),
]
