import pytest

from anchorfold.storage.text_search import MOST_TERMS, cleaned, joined, match_expression, spaced


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("net revenue", '"net" OR "revenue"'),
        ("", ""),
        (' \t"" ?! -- _', ""),
        ('say "by region"', '"by region" AND ("by region" OR "say")'),
        ("say “by region” «net»", '"by region" AND "net" AND ("by region" OR "net" OR "say")'),
        ('an "open quote', '"open" OR "quote"'),
        ("Wi-Fi 1,775", '"Wi Fi" OR "Wi" OR "Fi" OR "1 775"'),
        ('NEAR(a b) OR c* ^d "x" AND', '"x" AND ("x" OR "NEAR a" OR "NEAR" OR "b" OR "c" OR "d")'),
        ("年", '"年"'),
        ("売上高2024年", '"売 上" OR "上 高" OR "2024" OR "年"'),
    ],
)
def test_the_expression_of_a_query(query, expression):
    assert match_expression(query) == expression


def test_a_long_query_is_truncated():
    assert match_expression(" ".join(f"w{i}" for i in range(1000))).count(" OR ") == MOST_TERMS - 1


@pytest.mark.parametrize("text", ["", "plain", "売上高は2024年に", "한국어 문장", "a\nb"])
def test_separated_text_can_be_joined_again(text):
    assert joined(spaced(text)) == text
    assert spaced(spaced(text)) == spaced(text)


def test_control_characters_and_soft_hyphens_are_removed():
    assert cleaned("a\x00b\r\nc\ud800 \ufeff") == "a b\nc"
    assert cleaned("exam\ufffe\r\nple re\u00ad\nsult docu\x02ment") == "example result document"
