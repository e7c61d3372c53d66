"""What compression refuses, and by which queries a prefix can be scored."""

from __future__ import annotations

MIN_KEEP_RATIO = 0.01  # Algorithm 1 clips a layer's budget here: a smaller total could not be met


def check_keep_ratio(keep_ratio: float) -> None:
    """Raises ValueError unless keep_ratio, the share of the cache to keep, is in [0.01, 1]."""
    if not MIN_KEEP_RATIO <= keep_ratio <= 1:
        raise ValueError(
            f'keep ratio is {keep_ratio}, which is not in [{MIN_KEEP_RATIO}, 1]: a layer never '
            'keeps less than 1 % of its tokens; 1 keeps everything'
        )


def scoring_queries(
    wanted: str | None, prefix: int, text: int, question: int = 0, window: int = 0
) -> range:
    """Positions of the queries that score a prefix, of those of prefix and question in a row.

    wanted: a method's `queries`. prefix: its tokens, of which the last `text` follow the images.
    question: tokens of a question appended to it; 0: the prefix is scored by itself. window: how
    many queries a method of wanted 'window' takes.

    'post_vision' is all of the question where there is one, else all text behind the images
    (VL-Cache's tau, 4.1; its measurements of speed took the last 50, 5.2); a prompt without images
    is all text. 'all' is every token, 'window' the last ones (all, if there are fewer), None
    nothing. Raises ValueError if 'post_vision' is wanted and no text follows the images.
    """
    end = prefix + question
    if wanted is None:
        return range(0)
    if wanted == 'all':
        return range(end)
    if wanted == 'window':
        return range(max(0, end - window), end)
    if wanted != 'post_vision':
        raise ValueError(f"no queries {wanted!r}; there are: 'post_vision', 'all', 'window', None")
    asked = question or text
    if not asked:
        raise ValueError(
            'no text follows the images, so nothing scores them: score by an appended question, '
            'or take a method that needs no queries (streaming_llm, random)'
        )
    return range(end - asked, end)
