"""Routes are examined by FastAPI when they are first asked for."""

import pytest
from starlette.routing import Match
from starlette.types import Scope
from tests.support.gateways import RunningGateway, running_gateway

from parley.gateway.http.routing import LateRoute


def late_routes(running: RunningGateway) -> list[LateRoute]:
    return [route for route in running.gateway.app.routes if isinstance(route, LateRoute)]


def examined(running: RunningGateway) -> set[str]:
    return {route.path_format for route in late_routes(running) if "dependant" in vars(route)}


async def test_a_request_has_its_own_route_examined_and_no_other() -> None:
    async with running_gateway() as running, running.http() as client:
        assert len(late_routes(running)) > 50
        assert examined(running) == set()

        missing = await client.get("/nothing/of/this/name")
        refused = await client.put("/health")
        assert missing.status_code == 404
        assert refused.status_code == 405
        assert examined(running) == set()

        assert (await client.get("/workers")).status_code == 200
        assert examined(running) == {"/workers"}


async def test_the_document_of_all_operations_has_every_route_examined() -> None:
    async with running_gateway() as running, running.http() as client:
        document = (await client.get("/openapi.json")).json()
        shown = {route.path_format for route in late_routes(running) if route.include_in_schema}
        assert shown == set(document["paths"])
        assert shown <= examined(running)


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
    async with running_gateway() as running, running.http() as client:
        await client.get(path)

        assert len(compared) <= most
        assert len(running.gateway.app.routes) > 100


async def test_a_slash_too_many_leads_to_the_path_without() -> None:
    async with running_gateway() as running, running.http() as client:
        answer = await client.get("/api/queue/")

    assert answer.status_code == 307
    assert answer.headers["location"].endswith("/api/queue")
