"""Routes are examined by FastAPI when they are first asked for."""

from __future__ import annotations

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

        assert (await client.get("/health")).status_code == 200
        assert examined(running) == {"/health"}


async def test_the_document_of_all_operations_has_every_route_examined() -> None:
    async with running_gateway() as running, running.http() as client:
        document = (await client.get("/openapi.json")).json()
        shown = {route.path_format for route in late_routes(running) if route.include_in_schema}
        assert shown == set(document["paths"])
        assert shown <= examined(running)
