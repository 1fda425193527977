"""The page of a report, without a browser."""

from elias_ray.web_page import Picture, Section, facts, page, paragraph, picture, table

EVIL = '<script>alert("x")</script> & co'


def test_names_and_texts_are_escaped() -> None:
    drawn = Picture(EVIL, EVIL, "a.png", b"png")
    body = paragraph(EVIL) + table([EVIL], [[EVIL]], EVIL) + picture(drawn) + facts({EVIL: EVIL})
    made = page(EVIL, EVIL, "", [Section(EVIL, body)])
    assert "<script>" not in made
    assert "& co" not in made
    assert made.count("&lt;script&gt;") >= 11
    assert 'alert("' not in made


def test_nothing_is_asked_of_others() -> None:
    made = page("title", "subtitle", "", [Section("Part", picture(Picture("a", "b", "c.png", b"png")))])
    assert "http" not in made
    assert made.count("data:image/png;base64,cG5n") == 1
