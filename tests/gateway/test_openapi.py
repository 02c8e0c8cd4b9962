"""What `/openapi.json` says of each operation. Whether answers are so: test_schemathesis.py."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from tests.support.gateways import running_gateway

from parley.gateway.http.openai.completions import Completion
from parley.gateway.http.openai.response_request import ResponseRequest
from parley.gateway.http.openai.speech import SpeechRequest
from parley.protocol import chat

OWN_ERRORS = {("/ready", "503"): "/Readiness", ("/health", "503"): "/Health"}
"""What says in its own words that something is not well."""

LONG = {
    "/api/chat",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
}
"""Wait for a worker, of which there is none here."""


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


def test_every_route_with_an_id_documents_that_it_may_not_be_there(spec: dict[str, Any]) -> None:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            if "{session_id}" in path or "{voice_id}" in path or "{key_id}" in path:
                assert "404" in operation["responses"], (method, path)


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


def test_every_operation_documents_its_errors(spec: dict[str, Any]) -> None:
    """Also those that come from in front of the routes, and always in our shape."""
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            where, answers = (method, path), operation["responses"]
            assert {"401", "429"} <= set(answers), where
            if "requestBody" in operation:
                # Chat requests are read by the dialect's own rules, which say 400 throughout.
                is_checked_here = path in LONG or path.startswith("/v1/")
                needed = {"400", "413"} if is_checked_here else {"400", "413", "422"}
                assert needed <= set(answers), where
            for status, answer in answers.items():
                assert answer["description"] not in ("", "Successful Response") or status < "3"
                if status >= "4" and status != "416":
                    schema = answer["content"]["application/json"]["schema"]
                    shape = "/OpenAIError" if path.startswith("/v1/") else "/ErrorDetail"
                    shape = OWN_ERRORS.get((path, status), shape)
                    assert schema["$ref"].endswith(shape), (where, status)
    assert "HTTPValidationError" not in spec["components"]["schemas"]


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


async def test_until_there_is_an_admin_token_admins_need_none() -> None:
    async with running_gateway() as gateway, gateway.http() as http:
        spec = (await http.get("/openapi.json")).json()

    assert {} in spec["paths"]["/api/admin/audit"]["get"]["security"]


async def test_what_ready_answers_is_in_its_schema_also_when_it_is_not():
    async with running_gateway() as gateway, gateway.http() as http:
        schema = (await http.get("/openapi.json")).json()
        answer = await http.get("/ready")

    told = schema["paths"]["/ready"]["get"]["responses"]["503"]["content"]["application/json"]
    named = schema["components"]["schemas"][told["schema"]["$ref"].rsplit("/", 1)[1]]
    assert answer.status_code == 503
    assert set(answer.json()) == set(named["properties"]) == {"ready", "why"}


async def test_a_json_type_that_the_schema_forbids_is_refused() -> None:
    wrong: list[tuple[str, str, Any]] = [
        ("PUT", "/api/admin/apps", {"app_id": "omni", "enabled": "yes"}),
        ("PUT", "/api/admin/apps", {"app_id": "omni", "enabled": 1}),
        ("POST", "/api/admin/clean", {"max_gb": "5"}),
        ("POST", "/api/admin/clean", {"dry_run": "true"}),
        ("PUT", "/api/config/eta", {"eta_chat_s": "12"}),
        ("POST", "/api/admin/keys", {"name": "x", "max_sessions": "8"}),
    ]
    async with running_gateway() as gateway, gateway.http() as http:
        answers = [await http.request(method, path, json=body) for method, path, body in wrong]

    assert [answer.status_code for answer in answers] == [422] * len(wrong)
