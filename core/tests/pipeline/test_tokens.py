from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.models.description import TokenizerSpec
from isthmus.pipeline.tokens import StreamDecoder, Tokenizer, control_ids, load_tokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastModel

JSON = TokenizerSpec("tokenizer_json", ("tokenizer.json",))
TEXT = "What's 12 + 3?\n\n  Größe: 你好 🦊 e\u0301"


def here(folder: Path) -> Callable[[str], Path]:
    return lambda name: folder / name


@pytest.fixture
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return load_tokenizer(JSON, here(tokenizer_file.parent))


def test_text_survives_the_way_there_and_back(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode("") == []


def test_control_tokens_in_plain_text_are_plain_text(tokenizer: Tokenizer) -> None:
    text = "say <|im_end|> and <IMG_CONTEXT>"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special.values())
    assert tokenizer.decode(ids) == text


def test_control_tokens_are_found_when_asked_for(tokenizer: Tokenizer, tokenizer_file: Path) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n"
    expected = FastModel.from_file(str(tokenizer_file)).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, special=True) == expected
    assert tokenizer.split(text) == ["<|im_start|>", "user\nhi", "<|im_end|>", "\n"]


def test_decoding_drops_control_tokens_and_ids_of_padding_rows(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.special["<|im_start|>"], *tokenizer.encode("ok"), 10_000, tokenizer.special["<|im_end|>"]]
    assert tokenizer.decode(ids) == "ok"


def test_prompt_markers_are_control_tokens_even_if_the_file_says_otherwise(tokenizer_file: Path) -> None:
    data = json.loads(tokenizer_file.read_text())
    for token in data["added_tokens"]:
        token["special"] = False
    tokenizer_file.write_text(json.dumps(data))
    plain = load_tokenizer(JSON, here(tokenizer_file.parent))
    assert "<img>" not in plain.special
    marked = load_tokenizer(JSON, here(tokenizer_file.parent), controls=["<img>", "<no such token>"])
    assert set(marked.special) == {"<img>"}
    assert marked.special["<img>"] not in marked.encode("<img>")


def test_white_space_that_a_control_token_swallows_is_swallowed(tokenizer_file: Path) -> None:
    model = FastModel.from_file(str(tokenizer_file))
    model.add_special_tokens([AddedToken("<|end|>", rstrip=True, lstrip=True, special=True, normalized=False)])
    model.save(str(tokenizer_file))
    ours = load_tokenizer(JSON, here(tokenizer_file.parent))
    text = "a  <|end|>\n b"
    assert ours.encode(text, special=True) == model.encode(text, add_special_tokens=False).ids


def test_text_after_a_control_token_is_not_treated_as_the_first(tmp_path: Path) -> None:
    model = FastModel(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2, "<s>": 3}, merges=[("▁", "a")]))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    model.decoder = decoders.Metaspace(prepend_scheme="first")
    model.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    model.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(JSON, here(tmp_path))
    assert ours.encode("<s>a a", special=True) == model.encode("<s>a a", add_special_tokens=False).ids == [3, 1, 2]


def test_the_first_token_comes_from_the_post_processor(tokenizer_file: Path) -> None:
    data = json.loads(tokenizer_file.read_text())
    start = {"id": "<|im_start|>", "type_id": 0}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": start}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [257], "tokens": ["<|im_start|>"]}},
    }
    tokenizer_file.write_text(json.dumps(data))
    spec = TokenizerSpec("gguf", ("tokenizer.json",), add_bos=True)
    tokenizer = load_tokenizer(spec, here(tokenizer_file.parent))
    assert tokenizer.bos == (257,)
    assert 257 not in tokenizer.encode("a")


def test_a_first_token_that_the_file_does_not_add_is_an_error(tokenizer_file: Path) -> None:
    with pytest.raises(InputError, match="adds none"):
        load_tokenizer(TokenizerSpec("tokenizer_json", ("tokenizer.json",), add_bos=True), here(tokenizer_file.parent))


def write_qwen(folder: Path) -> TokenizerSpec:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["he", "ll", "hell", "hello", "Ġhello"]
    vocab = {t: i for i, t in enumerate([*alphabet, *words])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nl l\nhe ll\nhell o\nĠ hello\n")
    added = {"<|im_start|>": 300, "<|im_end|>": 301, "<IMG_CONTEXT>": 310, "<think>": 311}
    return TokenizerSpec("bpe", ("vocab.json", "merges.txt"), added)


def test_bpe_files_make_the_tokenizer_that_qwen_uses(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_qwen(tmp_path), here(tmp_path))
    assert tokenizer.special == {"<|im_start|>": 300, "<|im_end|>": 301, "<IMG_CONTEXT>": 310}
    assert tokenizer.encode("hello hello") == [259, 260]
    assert tokenizer.encode("<|im_start|>hello", special=True) == [300, 259]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT.replace("e\u0301", "é")  # NFC
    assert tokenizer.encode("12") == [*tokenizer.encode("1"), *tokenizer.encode("2")]
    assert tokenizer.decode([311, 259]) == "<think>hello"  # a visible word


def test_an_added_token_with_another_id_than_the_vocabularys_is_refused(tmp_path: Path) -> None:
    spec = write_qwen(tmp_path)
    with pytest.raises(InputError, match="'hello' gets id 259; the model was trained with 999"):
        load_tokenizer(
            TokenizerSpec("tokenizer_json", ("tokenizer.json",), {"hello": 999}),
            here(_as_json(tmp_path, spec)),
        )


def _as_json(folder: Path, spec: TokenizerSpec) -> Path:
    vocab, merges = models.BPE.read_file(*(str(folder / name) for name in spec.files))
    FastModel(models.BPE(vocab=vocab, merges=merges)).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sp")
    (folder / "corpus.txt").write_text("\n".join(f"hello world number {i} größe" for i in range(50)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=320, byte_fallback=True,
        model_type="bpe", add_dummy_prefix=False, minloglevel=2, normalization_rule_name="identity",
        remove_extra_whitespaces=False, hard_vocab_limit=False, bos_id=1, eos_id=2, unk_id=0,
    )  # fmt: skip
    return folder


def load_sentencepiece(folder: Path) -> Tokenizer:
    added = {"<|im_end|>": 400, "<|im_start|>": 401, "<IMG_CONTEXT>": 405}
    spec = TokenizerSpec("sentencepiece", ("tokenizer.model",), added, add_bos=True)
    return load_tokenizer(spec, here(folder))


def test_a_sentencepiece_model_works_with_added_tokens(sentencepiece_folder: Path) -> None:
    tokenizer = load_sentencepiece(sentencepiece_folder)
    assert tokenizer.bos == (1,)
    assert tokenizer.special == {"<s>": 1, "</s>": 2, "<|im_end|>": 400, "<|im_start|>": 401, "<IMG_CONTEXT>": 405}
    text = "hello 你好 🦊 <|im_end|> </s>\n x"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special.values())
    assert tokenizer.decode([1, *ids, 400, 9999]) == text
    assert tokenizer.encode("<|im_start|>hello", special=True) == [401, *tokenizer.encode("hello")]


@pytest.mark.parametrize("content", [b"", b"{", b'{"model": 3}', b"\xff\xfe"])
@pytest.mark.parametrize("kind", ["tokenizer_json", "sentencepiece"])
def test_a_damaged_tokenizer_file_is_an_input_error(tmp_path: Path, kind: str, content: bytes) -> None:
    name = {"tokenizer_json": "tokenizer.json", "sentencepiece": "tokenizer.model"}[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        load_tokenizer(TokenizerSpec(kind, (name,)), here(tmp_path))


def test_an_unknown_kind_and_a_missing_control_token_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'tiktoken'"):
        load_tokenizer(TokenizerSpec("tiktoken", ()), here(tmp_path))
    with pytest.raises(InputError, match=r"'<\|end\|>', which phi3 needs"):
        control_ids(tokenizer, ["<|end|>", "<img>"], "phi3")


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = StreamDecoder(tokenizer)
    return [stream.push(i) for i in ids] + [stream.flush()]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_stream_never_splits_a_character_and_loses_nothing(text: str) -> None:
    tokenizer = STREAMED
    pieces = pieces_of(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_stream_shows_each_character_as_soon_as_it_is_whole(tokenizer: Tokenizer) -> None:
    assert pieces_of(tokenizer, tokenizer.encode("a🦊b")) == ["a", "", "", "", "🦊", "b", ""]


@given(st.lists(st.integers(0, 270)))
def test_a_stream_of_any_tokens_adds_up_to_their_text(ids: list[int]) -> None:
    assert "".join(pieces_of(STREAMED, ids)) == STREAMED.decode(ids)


def test_a_character_that_is_never_finished_comes_out_as_a_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x🦊")[:3]
    assert pieces_of(tokenizer, ids) == ["x", "", "", "\ufffd"]


def test_a_sentencepiece_stream_keeps_spaces_and_characters(sentencepiece_folder: Path) -> None:
    tokenizer = load_sentencepiece(sentencepiece_folder)
    text = " hello  größe 🦊 world"
    pieces = pieces_of(tokenizer, [401, *tokenizer.encode(text), 400])
    assert "".join(pieces) == text
    assert "🦊" in pieces or any("🦊" in p for p in pieces)


def _streamed() -> Tokenizer:
    import tempfile

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = FastModel(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    with tempfile.TemporaryDirectory() as folder:
        built.save(f"{folder}/tokenizer.json")
        return load_tokenizer(JSON, here(Path(folder)))


STREAMED = _streamed()
