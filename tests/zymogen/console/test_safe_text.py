"""What is shown of a URL, and who gets the rest."""

import pytest

from data.settings import CorpusSettings, DataSettings
from support.planted import SECRET, SIGNED, SIGNED_AGAIN, URLS
from zymogen.console.safe_text import WHOLE, is_redacted, redact_later, redacted, unredacted


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    WHOLE.clear()


EMPTY = "1271cf25"  # of a URL that has nothing but its signature


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/x.fasta", "https://host/x.fasta"),
        ("https://host/x.fasta?", "https://host/x.fasta?"),
        ("https://host/x?X-Amz-Signature=s&X-Amz-Date=1", f"https://host/x?hidden={EMPTY}"),
        ("https://host/x?X-Goog-Signature=s&X-Goog-Expires=1", f"https://host/x?hidden={EMPTY}"),
        ("https://host/x?sv=1&se=2&sp=r&sig=s%2B", f"https://host/x?hidden={EMPTY}"),
        ("https://host/x?Expires=1&Signature=s&Key-Pair-Id=K", f"https://host/x?hidden={EMPTY}"),
        ("https://host/x.csv?sequence=seq&sig=s", f"https://host/x.csv?sequence=seq&hidden={EMPTY}"),
        ("simplecache::https://host/x?sig=s", f"simplecache::https://host/x?hidden={EMPTY}"),
        ("https://host/s?query=(proteome:UP*)&format=fasta", "https://host/s?query=(proteome:UP*)&format=fasta"),
        ("x.csv?sequence=a&id=b", "x.csv?sequence=a&id=b"),
        ("sftp://me@host/x.fasta", "sftp://me@host/x.fasta"),
        ("datasets://json?data_files=s3://bucket/x.json", "datasets://json?data_files=s3://bucket/x.json"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert redact_later(url, "data.sources") == shown
    assert redacted(url) == shown == redacted(shown)
    assert unredacted(shown) == url


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_no_secret_is_in_a_setting_and_the_opener_gets_it(url: str) -> None:
    if "@" in url:
        with pytest.raises(ValueError, match=r"^data\.sources: a URL has a user or a password in it, ") as refused:
            DataSettings(sources=(url,))
        assert SECRET not in str(refused.value)
        return
    settings = DataSettings(sources=(url, "x.fasta"), mixture=())
    assert SECRET not in repr(settings)
    assert unredacted(settings.sources[0]) == url
    assert settings.sources[1] == "x.fasta"
    assert SECRET not in redacted(f"Cannot open '{url}': {url}; {url}\n<{url}> (see {url}), at {url}.")
    WHOLE.clear()  # as in another process
    assert SECRET not in redacted(f"Cannot open '{url.replace(' ', '%20')}'")
    assert is_redacted(settings.sources[0])
    with pytest.raises(ValueError, match="was not written down: give the whole URL again"):
        unredacted(settings.sources[0])


def test_a_url_that_was_signed_again_is_the_same_source() -> None:
    first, again = (CorpusSettings(sources=(f"https://host/x?{query}&t=1",)) for query in (SIGNED, SIGNED_AGAIN))
    assert first == again
    assert unredacted(first.sources[0]) == f"https://host/x?{SIGNED_AGAIN}&t=1"  # the newest signature is used
    assert CorpusSettings(sources=(f"https://host/x?{SIGNED}&t=2",)) != first


def test_names_of_files_are_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "opaque/token")
    assert redacted("hf_proteins.fasta: no such file") == "hf_proteins.fasta: no such file"
    assert redacted("by hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567 and opaque%2Ftoken") == "by (hidden) and (hidden)"
