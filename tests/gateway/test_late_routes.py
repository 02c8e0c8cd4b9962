"""Routes are examined by FastAPI when they are first asked for."""

import httpx
import pytest
from starlette.routing import Match
from starlette.types import Scope
from tests.support.gateways import RunningGateway, running_gateway

from parley.gateway.http.routing import LateRoute


def late_routes(gateway: RunningGateway) -> list[LateRoute]:
    return [route for route in gateway.gateway.app.routes if isinstance(route, LateRoute)]


def examined(gateway: RunningGateway) -> set[str]:
    return {route.path_format for route in late_routes(gateway) if "dependant" in vars(route)}


async def test_a_request_has_its_own_route_examined_and_no_other(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    assert len(late_routes(gateway)) > 50
    assert examined(gateway) == set()

    missing = await http.get("/nothing/of/this/name")
    refused = await http.put("/health")
    assert missing.status_code == 404
    assert refused.status_code == 405
    assert examined(gateway) == set()

    assert (await http.get("/workers")).status_code == 200
    assert examined(gateway) == {"/workers"}


async def test_the_document_of_all_operations_has_every_route_examined(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    document = (await http.get("/openapi.json")).json()
    shown = {route.path_format for route in late_routes(gateway) if route.include_in_schema}
    assert shown == set(document["paths"])
    assert shown <= examined(gateway)


@pytest.mark.parametrize(("path", "most"), [("/nosuch", 0), ("/health", 1), ("/api/nosuch", 90)])
async def test_a_path_is_compared_only_with_routes_that_start_like_it(
    path: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[LateRoute] = []
    matches = LateRoute.matches

    def counting(route: LateRoute, scope: Scope) -> tuple[Match, Scope]:
        compared.append(route)
        return matches(route, scope)

    monkeypatch.setattr(LateRoute, "matches", counting)
    async with running_gateway() as gateway, gateway.http() as http:
        await http.get(path)

        assert len(compared) <= most
        assert len(gateway.gateway.app.routes) > 100


async def test_a_slash_too_many_leads_to_the_path_without(http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/queue/")

    assert answer.status_code == 307
    assert answer.headers["location"].endswith("/api/queue")
