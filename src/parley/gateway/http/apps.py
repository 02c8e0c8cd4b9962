"""`/api/apps`: lists the apps and enables or disables them; the choice survives restarts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from parley.gateway.apps import App
from parley.gateway.http.admin import admin_router
from parley.gateway.http.bodies import filled
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime


class AppInfo(msgspec.Struct, kw_only=True):
    """An app: one kind of conversation."""

    app_id: Annotated[str, Meta(examples=["omni"])]
    name: Annotated[str, Meta(examples=["Video call"])]
    route: Annotated[str, Meta(examples=["/omni"])]


class AdminAppInfo(AppInfo, kw_only=True):
    """An app, and if it is on."""

    enabled: bool


class AppList(msgspec.Struct, kw_only=True):
    """Enabled apps, in fixed order."""

    apps: list[AppInfo]


class AdminAppList(msgspec.Struct, kw_only=True):
    """All apps, in fixed order."""

    apps: list[AdminAppInfo]


class Switch(msgspec.Struct, kw_only=True):
    """On or off."""

    enabled: bool


class NamedSwitch(Switch, kw_only=True):
    """An app, on or off."""

    app_id: Annotated[str, Meta(examples=["omni"])]


class Switched(msgspec.Struct, kw_only=True):
    """The current state of the app."""

    success: bool = True
    app: AdminAppInfo


def routes(runtime: GatewayRuntime) -> Router:
    apps, state = runtime.access.apps, runtime.stores.state
    router = Router(tag="apps")
    admin = admin_router("/apps", tag="apps", errors=(404,))

    def describe(app: App) -> AdminAppInfo:
        return filled(AdminAppInfo, app, enabled=app.is_enabled)

    async def switch(app_id: str, is_on: bool) -> Switched:
        app = apps.find(app_id)
        if app is None:
            raise HTTPException(404, "No such app.")
        app.is_enabled = is_on
        await state.set_app(app_id, is_on)
        return Switched(app=describe(app))

    @router.get("/api/apps", name="apps")
    async def offered() -> AppList:
        """Apps that are switched on."""
        return AppList(apps=[filled(AppInfo, app) for app in apps if app.is_enabled])

    @admin.get("")
    async def all_apps() -> AdminAppList:
        """All apps, enabled or not."""
        return AdminAppList(apps=[describe(app) for app in apps])

    @admin.put("")
    async def switch_named(change: NamedSwitch) -> Switched:
        """Switch an app on or off; running sessions continue."""
        return await switch(change.app_id, change.enabled)

    @admin.put("/{app_id}")
    async def switch_one(app_id: str, change: Switch) -> Switched:
        """Switch an app on or off; running sessions continue."""
        return await switch(app_id, change.enabled)

    router.routes.extend(admin.routes)
    return router
