"""What the fuzz says, without a broker: proper commands are proper, and however a stream is cut, it means the same."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from faults.fuzz.grammar import Grammar
from faults.fuzz.mutations import mutate, random_cuts
from metaq.errors import ProtocolError
from metaq.protocols.text.commands import Quit
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder

LINE_BYTES_MAX, BODY_BYTES_MAX = 8192, 100_000
SEEDS = st.integers(0, 1 << 32)


def decode(chunks: Iterable[bytes]) -> tuple[list[object], str]:
    """Return the commands in a stream and how it ended: with the first error, or for want of more."""
    decoder = CommandDecoder(LINE_BYTES_MAX, BODY_BYTES_MAX)
    commands: list[object] = []
    try:
        for chunk in chunks:
            decoder.receive_data(chunk)
            while (command := decoder.next_command()) is not NEED_DATA:
                commands.append((type(command), command))
            assert decoder.pending_bytes <= LINE_BYTES_MAX + BODY_BYTES_MAX
    except ProtocolError as error:
        return commands, error.what
    return commands, "" if decoder.pending_bytes else "nothing is left"


@given(seed=SEEDS)
def test_a_proper_command_is_one_command_that_carries_its_opaque(seed: int) -> None:
    phrase = Grammar(Random(seed)).proper()
    commands, end = decode([phrase.data])
    assert end == "nothing is left"
    assert [command.opaque for _, command in commands] == [phrase.opaque]  # type: ignore[attr-defined]


@given(seed=SEEDS, edge_chance=st.sampled_from((0.01, 0.1, 0.5)), altered=st.booleans())
def test_a_stream_means_the_same_however_it_is_cut(seed: int, edge_chance: float, altered: bool) -> None:
    random = Random(seed)
    grammar = Grammar(random)
    phrases = [grammar.daring(edge_chance).data for _ in range(random.randint(1, 12))]
    data = b"".join(mutate(random, phrase) if altered else phrase for phrase in phrases)
    whole, whole_end = decode([data])
    cut, cut_end = decode(random_cuts(random, data))
    if any(kind is Quit for kind, _ in whole):  # type: ignore[misc]  # a broker reads no further
        whole, cut = before_quit(whole), before_quit(cut)
        whole_end = cut_end = "quit"
    assert (cut, cut_end) == (whole, whole_end)


def before_quit(commands: list[object]) -> list[object]:
    """Return the commands up to the first quit."""
    return commands[: next(n for n, (kind, _) in enumerate(commands) if kind is Quit)]  # type: ignore[misc]


@given(seed=SEEDS)
def test_the_same_seed_says_the_same(seed: int) -> None:
    one, other = (Grammar(Random(seed)) for _ in range(2))
    assert [one.daring(0.1) for _ in range(20)] == [other.daring(0.1) for _ in range(20)]
