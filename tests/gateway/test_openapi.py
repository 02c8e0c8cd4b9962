"""What `/openapi.json` says of each operation. Whether answers are so: test_schemathesis.py."""

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
from tests.support.gateways import running_gateway

from parley.gateway.http.bodies import JSON
from parley.gateway.http.openai.completions import Completion
from parley.gateway.http.openai.response_request import ResponseRequest
from parley.gateway.http.openai.speech import SpeechRequest
from parley.protocol import chat


def schema_of(spec: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = body.get("schema", {})
    if "$ref" in schema:
        schema = spec["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return dict(schema)


@pytest.fixture(scope="module")
def spec() -> Any:
    async def read() -> Any:
        async with running_gateway() as gateway, gateway.http() as http:
            return (await http.get("/openapi.json")).json()

    return asyncio.run(read())


def test_every_operation_says_what_it_does(spec: dict[str, Any]) -> None:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            assert operation.get("tags"), (method, path)


def described(spec: dict[str, Any]) -> Any:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            parts = {"body": operation.get("requestBody", {}), **operation["responses"]}
            for part, value in parts.items():
                for media_type, content in value.get("content", {}).items():
                    yield f"{method.upper()} {path} {part}", media_type, content


def test_everything_that_is_sent_or_answered_has_an_example(spec: dict[str, Any]) -> None:
    without = [
        where
        for where, media_type, content in described(spec)
        if media_type in ("application/json", "text/plain") and "example" not in content
    ]
    answered = {where.rsplit(" ", 1)[0] for where, _, _ in described(spec) if " 20" in where}
    operations = {
        f"{method.upper()} {path}" for path, methods in spec["paths"].items() for method in methods
    }

    assert without == []
    assert operations - answered == set()


def test_examples_are_what_their_schemas_say(spec: dict[str, Any]) -> None:
    checked = 0
    for where, _, content in described(spec):
        if "example" in content and "schema" in content:
            schema = {**content["schema"], "components": spec["components"]}
            validator = jsonschema_rs.validator_for(schema)
            assert [str(error) for error in validator.iter_errors(content["example"])] == [], where
            checked += 1
    assert checked > 200


@pytest.mark.parametrize(
    ("path", "struct"),
    [
        ("/api/chat", chat.Request),
        ("/v1/chat/completions", Completion),
        ("/v1/responses", ResponseRequest),
        ("/v1/audio/speech", SpeechRequest),
    ],
)
def test_a_body_is_described_as_the_server_reads_it(
    spec: dict[str, Any], path: str, struct: type[msgspec.Struct]
) -> None:
    schema = schema_of(spec, spec["paths"][path]["post"])

    fields = msgspec.structs.fields(struct)
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    assert set(schema["required"]) == {each.encode_name for each in fields if each.required}


def test_a_form_is_described_with_its_file(spec: dict[str, Any]) -> None:
    body = spec["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]
    form = body["content"]["multipart/form-data"]["schema"]

    assert form["required"] == ["file", "model"]
    assert form["properties"]["file"]["format"] == "binary"
    assert "srt" in form["properties"]["response_format"]["enum"]


def test_every_reference_leads_to_a_schema(spec: dict[str, Any]) -> None:
    named = set(re.findall(r"#/components/schemas/([^\"]+)", json.dumps(spec)))

    assert named <= spec["components"]["schemas"].keys()
    assert "CompletionMessage" in named


@pytest.mark.parametrize("needs_key", [False, True])
async def test_the_document_says_how_callers_show_who_they_are(needs_key: bool) -> None:
    security = {"admin_token": "the-admin", "needs_key": needs_key}
    async with running_gateway(security=security) as gateway, gateway.http() as http:
        spec = (await http.get("/openapi.json")).json()
        schemes = spec["components"]["securitySchemes"]
        sent = {"bearer": {"authorization": "Bearer pk_no"}}
        for name, one in schemes.items():
            if one["in" if one["type"] == "apiKey" else "scheme"] == "header":
                sent[name] = {one["name"]: "pk_no"}
        refused = [
            (await http.get("/health", headers=header)).status_code for header in sent.values()
        ]
        in_query = await http.get("/health", params={schemes["queryToken"]["name"]: "no"})

    anybody = {} in spec["paths"]["/api/queue"]["get"]["security"]
    named = [next(iter(one)) for one in spec["paths"]["/api/queue"]["get"]["security"] if one]
    assert named == ["bearer", "apiKey", "queryToken", "cookie"]
    assert anybody is not needs_key
    assert {} in spec["paths"]["/health"]["get"]["security"]
    admins = spec["paths"]["/api/admin/audit"]["get"]["security"]
    assert sorted(next(iter(one)) for one in admins) == ["adminToken", "bearer"]
    assert set(schemes) == {"adminToken", *named}
    # Each of them is really looked at: what is shown and not valid is refused.
    assert sorted(sent) == ["adminToken", "apiKey", "bearer"]
    assert refused == [401, 401, 401]
    assert in_query.status_code == 401


async def test_the_document_says_so_after_a_reload_too() -> None:
    async with running_gateway() as gateway, gateway.http() as http:
        before = (await http.get("/openapi.json")).json()
        settings = gateway.runtime.settings
        security = settings.security.model_copy(update={"needs_key": True})
        gateway.runtime.apply(settings.model_copy(update={"security": security}), workers_too=False)
        after = (await http.get("/openapi.json")).json()

    queue = [spec["paths"]["/api/queue"]["get"].pop("security") for spec in (before, after)]
    assert queue[0] == [{}, *queue[1]]
    assert before["components"] == after["components"]


def test_until_there_is_an_admin_token_admins_need_none(spec: dict[str, Any]) -> None:
    assert {} in spec["paths"]["/api/admin/audit"]["get"]["security"]


async def test_what_ready_answers_is_in_its_schema_also_when_it_is_not(
    http: httpx.AsyncClient,
    spec: dict[str, Any],
) -> None:
    answer = await http.get("/ready")

    told = spec["paths"]["/ready"]["get"]["responses"]["503"]["content"]["application/json"]
    named = spec["components"]["schemas"][told["schema"]["$ref"].rsplit("/", 1)[1]]
    assert answer.status_code == 503
    assert set(answer.json()) == set(named["properties"]) == {"ready", "why"}


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"),
    [
        (b'{"name": "x", "max_sessions": "8"}', JSON, 422, "max_sessions: expected int, got str"),
        (b'{"name": "x", "max_sessions": 0}', JSON, 422, "max_sessions: expected int >= 1, got 0"),
        (b'{"name": "x", "role": "boss"}', JSON, 422, "accepted: admin, operate, talk"),
        (b'{"name": "x", "role": null}', JSON, 422, "role: expected str, got null"),
        (b'{"name": "\\n"}', JSON, 422, "name must be printable text"),
        (b'{"name": ""}', JSON, 422, "name: must not be empty"),
        (b'{"name": "%s"}' % (b"x" * 61), JSON, 422, "name: expected str of length <= 60"),
        (b'{"name": "x", "per_minute": true}', JSON, 422, "per_minute: expected int, got bool"),
        (b"{}", JSON, 422, "name is required."),
        (b"[1]", JSON, 422, "message: expected object, got array"),
        (b'{"name":', JSON, 400, "not valid JSON"),
        (b"", "text/plain", 400, "The message is empty; it must be JSON text."),
        (b'{"name": "x"}', "text/plain", 422, "must be application/json, got text/plain."),
        (b'{"name": "x"}', "application/vnd.a+json; charset=utf-8", 201, ""),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_with_its_field(
    http: httpx.AsyncClient, body: bytes, kind: str, status: int, sentence: str
) -> None:
    answer = await http.post("/api/admin/keys", content=body, headers={"content-type": kind})

    assert answer.status_code == status
    assert sentence in answer.json().get("detail", "")
