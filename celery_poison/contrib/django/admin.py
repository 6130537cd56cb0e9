"""The quarantine in Django's admin: who may read and who may act; the pages themselves are in ``pages``."""

from __future__ import annotations

from typing import Any

from celery import current_app
from django.contrib import admin
from django.http import HttpRequest
from django.urls import path

from celery_poison.contrib.django.models import READ, PoisonMessage

#: The app of the thread that sets Django up: in a thread that answers a request Celery knows none.
_APP = current_app._get_current_object()


@admin.register(PoisonMessage)
class PoisonMessageAdmin(admin.ModelAdmin):
    """Pages in place of those that Django makes of a table: there is none."""

    def get_urls(self) -> list[Any]:
        # Only a process that answers requests pays for what these import.
        from celery_poison.contrib.django.pages import Pages

        pages, view = Pages(self.admin_site, _APP), self.admin_site.admin_view
        name = "celery_poison_poisonmessage_"
        return [
            path("", view(pages.messages), name=f"{name}changelist"),
            path("message/", view(pages.message), name=f"{name}message"),
            path("edit/", view(pages.edit), name=f"{name}edit"),
            path("groups/", view(pages.groups), name=f"{name}groups"),
            path("act/<slug:verb>/", view(pages.act), name=f"{name}act"),
        ]

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.has_perm(READ))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False
