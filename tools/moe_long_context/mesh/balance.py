"""A balanced split of layers over pipeline chunks: loss and each MTP depth weigh one layer, the embedding none."""

from __future__ import annotations


def balanced_stages(num_layers: int, mtp: int, chunks: int) -> tuple[str, ...]:
    """Stages in layout letters whose weights differ by at most one layer, the last one holding MTP and loss.

    The last chunk gives up one layer for the loss and one for each MTP depth; remainders go to the chunks after the
    first, because the first one also holds the embedding.
    """
    weight = num_layers + mtp + 1
    share, extra = divmod(weight, chunks)
    layers = [share] * chunks
    for index in range(extra):
        layers[(index + 1) % chunks] += 1
    layers[-1] -= mtp + 1
    borrow = chunks - 2
    while layers[-1] < 0:
        take = min(layers[borrow], 1) if borrow >= 0 else 0
        if take == 0 and borrow < 0:
            break
        layers[borrow] -= take
        layers[-1] += take
        borrow = borrow - 1 if borrow > 0 else chunks - 2
    stages = ["t" * count for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return tuple(stages)
