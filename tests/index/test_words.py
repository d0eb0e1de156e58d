import pytest

from anchorfold.index.words import MOST_TERMS, cleaned, expression_of, joined, spaced


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("net revenue", '"net" OR "revenue"'),
        ("", ""),
        (' \t"" ?! -- _', ""),
        ('say "by region"', '"say" OR "by region" OR "by" OR "region"'),
        ('an "open quote', '"an" OR "open" OR "quote"'),
        ("Wi-Fi 1,775", '"Wi Fi" OR "Wi" OR "Fi" OR "1 775"'),
        ('NEAR(a b) OR c* ^d "x" AND', '"NEAR a" OR "NEAR" OR "a" OR "b" OR "OR" OR "c" OR "d" OR "x" OR "AND"'),
        ("年", '"年"'),
        ("売上高2024年", '"売 上" OR "上 高" OR "2024" OR "年"'),
    ],
)
def test_what_a_query_asks_for(query, expression):
    assert expression_of(query) == expression


def test_a_long_query_is_cut():
    assert expression_of(" ".join(f"w{i}" for i in range(1000))).count(" OR ") == MOST_TERMS - 1


@pytest.mark.parametrize("text", ["", "plain", "売上高は2024年に", "한국어 문장", "a\nb"])
def test_characters_are_words_of_their_own_and_the_text_comes_back(text):
    assert joined(spaced(text)) == text
    assert spaced(spaced(text)) == spaced(text)


def test_what_is_no_character_goes():
    assert cleaned("a\x00b\r\nc\ud800 \ufeff") == "a b\nc"
    assert cleaned("exam\ufffe\r\nple re\u00ad\nsult docu\x02ment") == "example result document"
