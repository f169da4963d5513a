# SPDX-License-Identifier: Apache-2.0
"""Lines that ranks write in pieces: `python -u` writes each argument of print() on its own."""

from pathlib import Path

from jobs import run

LINES = 100
PIECES = """
import os, time
rank = os.environ["RANK"]
for number in range({lines}):
    os.write(1, f"rank {{rank}} line".encode())
    time.sleep(0.001)
    os.write(1, f" {{number}} end\\n".encode())
"""


def test_lines_written_in_pieces_are_not_torn(tmp_path: Path) -> None:
    """A piece that is 50 ms old is shown, so the best of a few runs counts."""
    expected = {f"[{rank}] rank {rank} line {number} end" for rank in range(2) for number in range(LINES)}

    def is_whole(folder: Path) -> bool:
        folder.mkdir()
        result = run(folder, PIECES.format(lines=LINES))
        assert result.code == 0, result.stderr
        return set(result.stdout.splitlines()) == expected

    assert any(is_whole(tmp_path / str(number)) for number in range(5))
