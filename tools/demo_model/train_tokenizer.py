"""Train the byte-level BPE of the demo model: python train_tokenizer.py TALES_FOLDER OUT_FOLDER"""
import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# gpt-oss's own split pattern, so that an engine needs only one.
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The order and the gaps of o200k_harmony; the gaps keep their numbers there as names.
SPECIALS = (
    "<|startoftext|> <|endoftext|> <|reserved_200000|> <|reserved_200001|> <|return|> <|constrain|> "
    "<|reserved_200004|> <|channel|> <|start|> <|end|> <|message|> <|reserved_200009|> <|reserved_200010|> "
    "<|reserved_200011|> <|call|> <|reserved_200013|> <|reserved_200014|> <|reserved_200015|> "
    "<|reserved_200016|> <|reserved_200017|> <|endofprompt|>"
).split()


def documents(folder: Path):
    for path in sorted(folder.glob("*.txt")):
        if path.name != "heldout.txt":
            # The demo talks in TinyStories' words, so they count more than their bytes.
            times = 4 if path.name == "tinystories.txt" else 1
            for text in path.read_text().split("<|endoftext|>"):
                for _ in range(times):
                    yield text.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tales", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab", type=int, default=6144, help="entries, special tokens included")
    arguments = parser.parse_args()

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=arguments.vocab - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(arguments.tales), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    assert tokenizer.get_vocab_size() == arguments.vocab, tokenizer.get_vocab_size()

    arguments.out.mkdir(parents=True, exist_ok=True)
    # Compact: the pretty form is a fifth larger.
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (arguments.out / "tokenizer.json").write_text(text)
    ids = {name: tokenizer.token_to_id(name) for name in SPECIALS}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    settings = {
        "added_tokens_decoder": {str(number): {"content": name, **flags} for name, number in ids.items()},
        "bos_token": "<|startoftext|>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|return|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (arguments.out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}
    (arguments.out / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


if __name__ == "__main__":
    main()
