"""Tiny random encoders laid out as BERT's and MobileBERT's folders are, and a tokenizer of a few words."""

from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ("the", "cat", "sat", "on", "question", "answer", ":", "?", ".", ",")
CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = {
    piece: i
    for i, piece in enumerate(dict.fromkeys([*CONTROL, *WORDS, *LETTERS, *(f"##{c}" for c in LETTERS)]))
}
SHAPE = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
}
KINDS = {
    "bert": lambda: hf.BertConfig(**SHAPE),
    "mobilebert": lambda: hf.MobileBertConfig(
        **SHAPE, embedding_size=20, intra_bottleneck_size=16, true_hidden_size=16, num_feedforward_networks=2
    ),
}


def write(kind: str, folder: Path) -> Path:
    """A folder as `google/mobilebert-uncased` is one, in tiny and random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = hf.AutoModel.from_config(KINDS[kind]())
        for name, value in made.named_parameters():
            is_norm = value.ndim == 1 and name.endswith("weight")
            torch.nn.init.normal_(value, 1.0 if is_norm else 0.0, 0.2)
        torch.nn.init.zeros_(made.embeddings.word_embeddings.weight[0])  # what fills up says nothing
    made.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{name}_token": token for name, token in zip(names, CONTROL, strict=True)}
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


class Characters:
    """A tokenizer of a language model: bytes, but "the " and " cat" are one token each."""

    MERGED = ("the ", " cat")

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        while text:
            merged = next((i for i, one in enumerate(self.MERGED) if text.startswith(one)), None)
            if merged is not None:
                found.append(256 + merged)
                text = text[len(self.MERGED[merged]) :]
            else:
                found += text[0].encode()
                text = text[1:]
        return found

    def decode(self, ids: "list[int] | tuple[int, ...]") -> str:
        whole = b"".join(
            self.MERGED[i - 256].encode() if 256 <= i < 258 else b"" if i >= 258 else bytes([i]) for i in ids
        )
        return whole.decode(errors="replace")
