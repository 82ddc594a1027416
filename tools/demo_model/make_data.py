"""Turn the tales into training data: python make_data.py TALES_FOLDER TOKENIZER_FOLDER OUT_FOLDER

Writes text.npz (the classic tales as they are), chat_NN.npz (request and answer pairs, every file with new
characters and new wordings of the same stories), heldout.npz and heldout_chat.npz.
"""
import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import asking
from stories import Story, find_subjects, read_documents, split_joined, tales, tiny_stories
from swaps import swap

def prepare(story: Story, rng: random.Random):
    text = swap(story.text, rng)
    found = find_subjects(text)
    if story.kind == "opening":
        text += "\n\n" + rng.choice(asking.CLOSINGS)
    return text, found


def conversations(whole: list[Story], openings: list[Story], pairs: float, seed: int):
    """One pass: lists of (role, text), shuffled, each story once; `pairs` as for asking.describe."""
    rng = random.Random(seed)
    stories = whole + rng.sample(openings, min(len(openings), len(whole) // 10))
    rng.shuffle(stories)
    out, index = [], 0
    while index < len(stories):
        if rng.random() < 0.06:  # as plain text, to be continued without a request
            out.append([("text", prepare(stories[index], rng)[0])])
            index += 1
            continue
        messages = asking.preamble(rng)
        turns = rng.choices((1, 2, 3), (84, 12, 4))[0]
        if rng.random() < 0.04:
            question, answer = asking.small_talk(rng)
            messages += [("user", question), ("assistant", answer)]
        for turn, story in enumerate(stories[index:index + turns]):
            text, found = prepare(story, rng)
            wording = asking.word_request(story, found, rng, pairs) if turn == 0 else asking.word_follow_up(found, rng, pairs)
            messages += [("user", wording), ("assistant", text)]
        index += turns
        if rng.random() < 0.02:
            question, answer = asking.small_talk(rng)
            messages += [("user", question), ("assistant", answer)]
        out.append(messages)
    for _ in range(len(stories) // 25):
        messages = asking.preamble(rng)
        for _ in range(rng.choice((1, 1, 2))):
            question, answer = asking.small_talk(rng)
            messages += [("user", question), ("assistant", answer)]
        out.append(messages)
    rng.shuffle(out)
    return out


def pieces(messages):
    """(text, learned) for each part in the harmony format; only the answers are learned."""
    last = len(messages) - 1
    for number, (role, text) in enumerate(messages):
        if role == "text":
            yield text + "<|endoftext|>", True
        elif role == "assistant":
            yield "<|start|>assistant", False
            yield "<|channel|>final<|message|>" + text + ("<|return|>" if number == last else "<|end|>"), True
        else:
            yield f"<|start|>{role}<|message|>{text}<|end|>", False


def save(path: Path, documents, size: int = 0) -> int:
    """documents: lists of (ids, weights of their losses); size: bytes of text. Stored flat, with the offset where
    each document begins."""
    ids, weights, offsets = [], [], [0]
    for document in documents:
        for part, part_weights in document:
            ids.extend(part)
            weights.extend(part_weights)
        offsets.append(len(ids))
    np.savez(path, ids=np.array(ids, np.uint16), weights=np.array(weights, np.uint8), offsets=np.array(offsets), bytes=size)
    return len(ids)


def plain(tokenizer: Tokenizer, texts: list[str]):
    return [[(encoding.ids, [1] * len(encoding.ids))] for encoding in tokenizer.encode_batch(texts)]


def emphasized(ids: list[int], asked: set[int], first_mention: int) -> list[int]:
    """Weights of an answer's losses: where a word of the request is first taken up counts more. Without that, a small
    model learns the prose well and the request last; were every mention to count more, it would repeat them."""
    new = set(asked)
    weights = []
    for number in ids:
        weights.append(first_mention if number in new else 1)
        new.discard(number)
    return weights


def save_chat(path: Path, tokenizer_path: str, first_mention: int, chats) -> int:
    tokenizer = Tokenizer.from_file(tokenizer_path)
    phrasing = set(tokenizer.encode(asking.PHRASING + " " + asking.PHRASING.lower()).ids)
    documents = []
    for chat in chats:
        document, asked = [], set()
        for text, learned in pieces(chat):
            ids = tokenizer.encode(text).ids
            if not learned:
                asked = set(ids) - phrasing if text.startswith("<|start|>user") else asked
                document.append((ids, [0] * len(ids)))
            else:
                weights = emphasized(ids, asked, first_mention)
                if text.endswith("<|end|>"):  # only a chat template writes this one, the model ends with <|return|>
                    weights[-1] = 0
                document.append((ids, weights))
        documents.append(document)
    return save(path, documents)


def make_pass(number: int, whole, openings, pairs: float, tokenizer_path: str, first_mention: int, out: Path) -> int:
    chats = conversations(whole, openings, pairs, seed=1000 + number)
    return save_chat(out / f"chat_{number:02}.npz", tokenizer_path, first_mention, chats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tales", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--passes", type=int, default=64, help="how many chat files")
    parser.add_argument("--first-mention", type=int, default=3, help="how much the first mention of a requested word counts")
    parser.add_argument("--pairs", type=float, default=4, help="how often two characters are asked for; 4 is as often as one")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--show", type=int, default=0, help="print this many conversations and stop")
    arguments = parser.parse_args()
    tokenizer_path = str(arguments.tokenizer / "tokenizer.json")
    tokenizer = Tokenizer.from_file(tokenizer_path)
    short, openings = tales(arguments.tales)
    whole = tiny_stories(arguments.tales) + short
    if arguments.show:
        print(f"{len(whole)} stories, of them {len(short)} classic; {len(openings)} openings")
        for chat in conversations(whole, openings, arguments.pairs, seed=7)[:arguments.show]:
            print("\n".join(f"[{role}] {text}" for role, text in chat), end="\n\n=====\n")
        return

    arguments.out.mkdir(parents=True, exist_ok=True)
    # The TinyStories come in the chat files, with new characters every time.
    texts = [text for path in sorted(arguments.tales.glob("*.txt")) if path.name not in ("heldout.txt", "tinystories.txt")
             for text in read_documents(path)]
    print("text tokens", save(arguments.out / "text.npz", plain(tokenizer, texts)))

    heldout = read_documents(arguments.tales / "heldout.txt")
    save(arguments.out / "heldout.npz", plain(tokenizer, heldout), sum(map(len, heldout)))
    meta = {"vocab_size": tokenizer.get_vocab_size(), "end_of_text": tokenizer.token_to_id("<|endoftext|>")}
    (arguments.out / "meta.json").write_text(json.dumps(meta))
    rng = random.Random(1)
    unseen = [Story(part) for text in heldout[-67:] for part in split_joined(text)]
    chats = [[("user", asking.word_request(story, find_subjects(story.text), rng, arguments.pairs)), ("assistant", story.text)]
             for story in unseen]
    save_chat(arguments.out / "heldout_chat.npz", tokenizer_path, arguments.first_mention, chats)

    with ProcessPoolExecutor(arguments.workers) as pool:
        work = partial(make_pass, whole=whole, openings=openings, pairs=arguments.pairs, tokenizer_path=tokenizer_path,
                       first_mention=arguments.first_mention, out=arguments.out)
        sizes = list(pool.map(work, range(arguments.passes)))
    print("chat tokens in each pass", int(np.mean(sizes)))


if __name__ == "__main__":
    main()
