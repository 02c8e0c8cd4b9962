"""How routes are found, and parameters of the query that do not fit."""

import httpx
import pytest
from starlette.routing import Match
from starlette.types import Scope
from tests.support.gateways import running_gateway

from parley.gateway.http.routing import Route


@pytest.mark.parametrize(("path", "most"), [("/nosuch", 0), ("/health", 1), ("/api/nosuch", 90)])
async def test_a_path_is_compared_only_with_routes_that_start_like_it(
    path: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Route] = []
    matches = Route.matches

    def counting(route: Route, scope: Scope) -> tuple[Match, Scope]:
        compared.append(route)
        return matches(route, scope)

    monkeypatch.setattr(Route, "matches", counting)
    async with running_gateway() as gateway, gateway.http() as http:
        await http.get(path)

        assert len(compared) <= most
        assert len(gateway.gateway.app.routes) > 100


@pytest.mark.parametrize(
    ("method", "path", "status", "header", "value"),
    [
        # Too many slashes lead to the path below any proxy.
        ("GET", "/api/queue/", 307, "location", "../queue"),
        ("GET", "/api/queue//?a=b%2F", 307, "location", "../../queue?a=b%2F"),
        ("GET", "/api/sessions/%C3%A9%3F/", 307, "location", "../%C3%A9%3F"),
        ("POST", "/health", 405, "allow", "GET"),
        ("PATCH", "/api/sessions/x", 405, "allow", "GET, DELETE"),
        ("DELETE", "/v1/models", 405, "allow", "GET"),
    ],
)
async def test_another_path_or_method_is_answered_with_what_there_is(
    http: httpx.AsyncClient, method: str, path: str, status: int, header: str, value: str
) -> None:
    answer = await http.request(method, path)

    assert (answer.status_code, answer.headers[header]) == (status, value)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("/api/presets?format=x", "format: invalid enum value 'x'; accepted: list, modes"),
        ("/api/usage?days=0", "days: expected int >= 1, got '0'"),
        ("/api/usage?days=x", "days: expected int, got 'x'"),
        ("/api/usage?days=1&days=2.5", "days: expected int, got '2.5'"),
        ("/internal/voice", "name is required."),
    ],
)
async def test_a_query_that_does_not_fit_is_refused_with_its_field(
    http: httpx.AsyncClient, asked: str, sentence: str
) -> None:
    answer = await http.get(asked)

    assert answer.status_code == 422
    assert answer.json() == {"detail": sentence, "code": "invalid_request"}


async def test_below_v1_such_a_query_is_refused_in_openais_shape(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/responses/resp_1", params={"stream": "maybe"})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "stream: expected bool, got 'maybe'"
    assert answer.json()["error"]["param"] == "stream"
