"""Pre-tokenizers of byte-level BPE models by the name that a GGUF file gives in `tokenizer.ggml.pre`.

A GGUF file contains vocabulary and merges, but only a name for the splitting before them, which llama.cpp
defines (src/llama-vocab.cpp). The rules here are those of the published tokenizer.json of the models behind a name.
A name that is not in the table is refused: other splits give other tokens, on which a model was not trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from specviz.errors import FetchError

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""


def _words(digits: str, letters: str = r"\p{L}", signs: str = r"[^\s\p{L}\p{N}]+[\r\n]*", ends: str = _TAIL) -> str:
    """The splitting of OpenAI's cl100k and its relatives, which differ in digits, letters, signs and line breaks."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{signs}|{ends}"


def _cased(digits: str, ending: str = "") -> str:
    """The splitting of OpenAI's o200k and its relatives: a capital within a word begins a new piece."""
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{first}{_UPPER}*{_LOWER}+{ending}|{first}{_UPPER}+{_LOWER}*{ending}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ONE, _THREE = r"\p{N}", r"\p{N}{1,3}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = "[一-龥ࠀ-一가-퟿]+"
_HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\u0386\u0388-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
"""Letters with two cases; those that Unicode's form C would change are given by number."""
_DEEPSEEK3 = (
    rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
    rf"|{_TAIL}"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
"""What llama.cpp does with files that give no name or "default"."""


@dataclass(frozen=True)
class Rules:
    """How a text is split before merges are applied, and other settings of the same name."""

    steps: tuple[str, ...]
    """Regular expressions; each splits the pieces of the one before; text between its matches is a piece too."""
    digits_apart: bool = False
    """Every digit is a piece of its own, before all steps."""
    falcon: bool = False
    """Falcon's own sequence, whose later steps see the bytes' spelling."""
    nfc: bool = False
    """The text is normalized to Unicode's form C first."""
    ignore_merges: bool = False
    """A piece that is in the vocabulary is one token, regardless of the merges."""
    add_bos: bool = False
    """A text begins with the bos token unless the file says otherwise."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Splits a text and spells the pieces in the alphabet of bytes."""
        if self.falcon:
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Punctuation("contiguous"),
                    _bytes(use_regex=True),
                    pre_tokenizers.Digits(False),
                    _split("[0-9][0-9][0-9]"),
                ]
            )
        if self.steps == (_GPT2,):
            spell = _bytes(use_regex=True)
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(True), spell]) if self.digits_apart else spell
        return pre_tokenizers.Sequence([*map(_split, self.steps), _bytes(use_regex=False)])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _bytes(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


_LLAMA3 = Rules((_words(_THREE),), ignore_merges=True, add_bos=True)
_CL100K = Rules((_words(_THREE),))
_QWEN2 = Rules((_words(_ONE),), nfc=True)
_QWEN2_RAW = Rules((_words(_ONE),))
_O200K = Rules((_cased(_THREE, _ENDINGS + "?"),))
_PLAIN = Rules((_GPT2,))
_PLAIN_NFC = Rules((_GPT2,), nfc=True)
_DIGITS = Rules((_GPT2,), digits_apart=True)
_SPLIT_BLOOM = Rules((_BLOOM,))
_V3 = Rules((_THREE, _HAN_KANA, _DEEPSEEK3))
_BAILING = Rules(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+",
    )
)

RULES: dict[str, Rules] = {
    "default": Rules(_DEFAULT),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "exaone": _DIGITS,
    "minerva-7b": _DIGITS,
    "mellum2": _DIGITS,
    "command-r": Rules((_GPT2,), digits_apart=True, nfc=True),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "jais": _PLAIN,
    "trillion": _PLAIN,
    "gigachat": _PLAIN,
    "a.x-4.0": _PLAIN,
    "mellum": _PLAIN,
    "exaone4": _PLAIN,
    "granite-docling": _PLAIN,
    "mpt": _PLAIN_NFC,
    "olmo": _PLAIN_NFC,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _CL100K,
    "qwen2": _QWEN2,
    "megrez": _QWEN2,
    "deepseek-r1-qwen": _QWEN2_RAW,
    "kormo": _QWEN2_RAW,
    "stablelm2": _QWEN2_RAW,
    "hunyuan": _QWEN2_RAW,
    "solar-open": _QWEN2_RAW,
    "grok-2": _QWEN2_RAW,
    "qwen35": Rules((_words(_ONE, r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), nfc=True),
    "tekken": Rules((_cased(_ONE),), ignore_merges=True, add_bos=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "kanana2": _O200K,
    "talkie": _O200K,
    "minimax-m2": _O200K,
    "bloom": _SPLIT_BLOOM,
    "poro-chat": _SPLIT_BLOOM,
    "gpt3-finnish": _SPLIT_BLOOM,
    "viking": Rules((_BLOOM, _ONE)),
    "deepseek-llm": Rules(("[\r\n]", _DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN, _ONE)),
    "deepseek-coder": Rules(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _ONE)),
    "deepseek-v3": _V3,
    "hunyuan-dense": _V3,
    "joyai-llm": _V3,
    "hy_v4": _V3,
    "falcon": Rules((), falcon=True),
    "bailingmoe": _BAILING,
    "bailingmoe2": _BAILING,
    "llada-moe": _BAILING,
    "seed-coder": Rules((_words(r"\p{N}", signs=r"[^\s\p{L}\p{N}\r\n]+"),)),
    "exaone-moe": Rules(
        (_words(_ONE, r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)", r"[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]|\s+(?!\S)|\s+"),)
    ),
    "minicpm5": Rules((_THREE, _words(r"\p{N}+")), ignore_merges=True),
    "chameleon": Rules(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            _ONE,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}
"""Names of `tokenizer.ggml.pre` -> rules."""


def rules_of(name: str | None, file: str) -> Rules:
    """The rules of a name; None is a file without one. Raises FetchError, which names `file`, if they are not known."""
    if (rules := RULES.get(name or "default")) is None:
        raise FetchError(
            f"{file} names the pre-tokenizer {str(name)[:60]!r}, whose rules SpecViz does not know, so its tokens "
            "would be wrong: choose the same model as safetensors, or another one."
        )
    return rules


def without_space_prefix(backend: Tokenizer) -> None:
    """Let a SentencePiece tokenizer of a GGUF file add no space to the start of a text, and strip none."""
    if backend.normalizer is not None:
        backend.normalizer = normalizers.Replace(" ", "▁")
    if backend.pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def apply(rules: Rules, backend: Tokenizer) -> None:
    """Make a byte-level BPE tokenizer split by these rules."""
    backend.pre_tokenizer = rules.pre_tokenizer()
    backend.normalizer = normalizers.NFC() if rules.nfc else None
    model = backend.model
    model.ignore_merges = rules.ignore_merges
    backend.model = model
