from tools.several_gateways import OneGateway, Rush, page, simulate

from tools import several_gateways

RUSH = Rush.of(3_000, 40)


def test_one_gateway_lets_nobody_overtake_and_no_slot_idle():
    found = simulate(RUSH, OneGateway)

    assert max(found.overtakers) == 0
    assert found.idle_share == 0
    assert max(found.waits) > 0


def test_the_page_has_a_table_for_every_rule():
    text = several_gateways.PAGE.read_text(encoding="utf-8")

    assert page(text, "x") != text
    assert all(f"| {name} |" in text for name in several_gateways.RULES)
