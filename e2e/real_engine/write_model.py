"""Runs beside the installed engine: ``python3 write_model.py CONFIG FOLDER``.

Every byte is a token, so any text can be asked; pairs of letters fill up what the config has room for, so
any answer can be shown.
"""

import json
import sys
from itertools import chain, islice, product
from pathlib import Path
from string import ascii_lowercase

import torch  # type: ignore[import-not-found,unused-ignore]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found,unused-ignore]
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SEED = 20260101
SHARD = "2MB"  # so that there is an index to read
SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")  # the first is the config's eos_token_id
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_weights(config: Path, folder: Path) -> None:
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig.from_json_file(config)).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=SHARD)
    for shard in folder.glob("*.safetensors"):
        shard.chmod(0o644)  # written for the owner's eyes only; the stager is somebody else


def write_tokenizer(config: Path, folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ("".join(pair) for pair in product(ascii_lowercase, repeat=2))
    room = json.loads(config.read_text())["vocab_size"]
    vocabulary = {token: number for number, token in enumerate(islice(chain(SPECIALS, letters, pairs), room))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIALS[0],
        pad_token=SPECIALS[0],
        additional_special_tokens=list(SPECIALS[1:]),
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]), Path(sys.argv[2]))
    write_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]))
